"""`LocalGroup`: the members of a group in a local directory.

The files in the directory are the list of members, as for python-blosc2. For a member that has a pending step, the step
decides; see `b2array.catalog.redo`. Readers open members from summaries in the manifest; see `b2array.group.summaries`.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Self

from b2array.array.drafts import FreePlace
from b2array.array.schunk import SChunk
from b2array.catalog import intact, local_listing
from b2array.catalog.known_manifests import another_group, read_manifest
from b2array.catalog.ledgers import MemberState
from b2array.catalog.local_listing import list_group
from b2array.catalog.manifest import EMBEDDED, MANIFEST, Manifest, is_embedded, members_among, staged_path
from b2array.catalog.names_of_members import Members
from b2array.catalog.redo import LocalMember, Remembered, inspect_place, load_local_member
from b2array.commit.frame_locks import publish_waiting
from b2array.commit.group_commit import Committed, GroupChange, MemberChange
from b2array.commit.handle import Handle, Mode
from b2array.commit.leftovers import is_abandoned
from b2array.commit.localize import localize
from b2array.commit.manifest_writes import write_manifest
from b2array.commit.on_disk import Disk
from b2array.commit.publication import publish_pending
from b2array.errors import ConflictError
from b2array.format.frame_header import FIRST_BYTES
from b2array.frame.revision import Revision
from b2array.frame.source import FRAME_NAME
from b2array.group import embedded, summaries
from b2array.group.homes import GroupHome
from b2array.group.new_members import NewFrame
from b2array.printable import printable
from b2array.store.atomic import require_free
from b2array.store.base import MISSING, Mutex, Store, Version, attempts, stale_reader, too_many_conflicts
from b2array.store.open import join_url, open_store

__all__ = ["LocalGroup"]

_MOST_STATES, _MOST_CHUNKS = 256, 2**12
"""How many states of members, and of how many chunks at most, a home remembers: some megabytes in all."""


class LocalGroup(GroupHome):
    """The members of a local group and its manifest, as listed at the first use.

    A caller that has listed the group passes the manifest and the members as `listing`. Copies share the `store`, and
    the `states` that this home has remembered, by path.
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
        self._mutex = Mutex()
        self._records = b"", {}
        # The groups inside this one, by name.
        self._mounts: dict[str, LocalGroup] = {}
        # The version of the manifest whose pending steps this home has taken: it need not take them again.
        self._published: Version | None = None
        # States that transactions of this home have committed, the latest last: the next transaction often needs
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
        """Pickle the list of members, if it was read, so that the copy shows the same members."""
        return _unpickle, (type(self), self._address, self.storage_options, self._listing, self._first)

    def copy(self) -> Self:
        """Return a second home that shows the same members, and shares the states that this home remembers.

        This lists the members if they were not listed yet.
        """
        copied = type(self)(
            self._address,
            self.storage_options,
            self._ensure_listing(),
            store=self.store,
            states=self._states,
        )
        copied._first = self._first
        return copied

    def address(self, path: str) -> str:
        """Return the path of a member in the file system; FormatError if symbolic links are on the way."""
        self.store.refuse_links(path)
        return join_url(self._address, path)

    def store_of(self, path: str) -> Store:
        """Return the store of the frame at a path in the group. It refuses symbolic links below the group."""
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
                # Threads share one home: members that two homes open may belong to different commits.
                mounts.setdefault(name, type(self)(self.address(name), self.storage_options))
            if name in mounts:
                return mounts[name], "/".join(parts[n:])
        return None

    def _is_mount(self, name: str) -> bool:
        """Return whether a manifest or an embedding frame in a directory marks it as a group."""
        return any(os.path.exists(os.path.join(self._address, name, mark)) for mark in (MANIFEST, EMBEDDED))

    def own_members(self, members: Mapping[str, str]) -> dict[str, str]:
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

    def look_for_manifest(self) -> bool:
        """Return whether there is a manifest that can be read; this shows no members. Ignores all errors."""
        # `whole.exists` checks whether another file marks the group, and raises the errors that matter.
        with suppress(Exception):
            return self.load_manifest() != Manifest()
        return False

    # The manifest.

    @property
    def manifest(self) -> Manifest:
        """The manifest of the members that this home shows."""
        return self._ensure_listing()[0]

    def versioned_manifest(self) -> tuple[Manifest, Version | None]:
        """Return the manifest of the members that this home shows. Its version is not known: a commit reads it."""
        return self.manifest, None

    def members(self) -> Members:
        """Return the path of each member by its name, in the order of the names."""
        return self._ensure_listing()[1]

    def show_files(self, paths: Collection[str]) -> None:
        """Show the members with these files, for a group whose manifest cannot be read."""
        self.show(Manifest(), Members(members_among(paths)))

    def show(self, manifest: Manifest, members: Members) -> None:
        """Show these members, and the manifest that belongs to them, until the next `refresh`."""
        self._listing = manifest, members

    def show_near(self, names: Collection[str]) -> None:
        """Show only the members that decide whether new members can have these names, in their latest states."""
        # A group may have very many other members.
        manifest = self.load_manifest()
        self.show(manifest, local_listing.list_near(self.store, names, manifest))

    def look_for(self, name: str) -> bool:
        """Return whether members with this name, or below it, were made since this home listed the members.

        The home shows them from now on, unless a later transaction has made or changed them: it would show a part of
        that transaction.
        """
        manifest, members = self._ensure_listing()
        near = local_listing.list_near(self.store, [name], manifest).below(name)
        new = {each: path for each, path in self.own_members(near).items() if each not in members}
        try:
            for path in new.values():
                if not is_embedded(path):
                    self.load_current(path)
        except ConflictError:
            return True
        if new:
            members = members.copy()  # other threads may be iterating over the list
            for each, path in new.items():
                members.add(each, path)
            self.show(manifest, members)
        return bool(new)

    def refresh(self) -> None:
        """Forget the list of members, and which groups are inside this one; the next use looks again."""
        self._listing = self._recovered = None
        self._mounts = {}

    def _ensure_listing(self) -> tuple[Manifest, Members]:
        """Return the listing that this home shows, and read it at the first use: manifest and members.

        Also remember the directory and the identity of the group that was shown first, for `require_same`.
        """
        listing = self._listing
        if listing is None:
            # Threads share one list: members that two lists show may belong to different commits.
            with self._mutex.held:
                listing = self._listing
                if listing is None:
                    recovered, self._recovered = self._recovered, None
                    listing = self._listing = list_group(self.store, recovered)
        number, identity = self._first
        if not (number and identity):
            self._first = number or os.stat(self._address).st_ino, identity or listing[0].identity
        return listing

    def require_same(self, manifest: Manifest | None = None) -> None:
        """Raise ConflictError if the directory was deleted or renamed since this home has first shown its members.

        If the caller has read the `manifest`, this compares its identity as well: another group may be there.
        """
        number, identity = self._first
        if not number:  # this home has shown no members yet
            return
        try:
            is_same = os.stat(self._address).st_ino == number
        except MISSING:
            raise ConflictError(f"{self.url} was deleted or renamed since it was opened") from None
        if not is_same or (manifest is not None and identity not in ("", manifest.identity)):
            raise another_group(self.url)

    def embedded_paths(self) -> Mapping[str, str]:
        """Return a path for each member in the embedding frame, by its name; none if the manifest has rows."""
        manifest = self.manifest
        return {} if manifest.rows is not None else local_listing.embedded_paths(self.store, manifest)

    def _open_embedding_frame(self) -> SChunk:
        """Read the embedding frame, and return it as a read-only super-chunk."""
        return SChunk(Handle(self._load_own_state(EMBEDDED, self.manifest), "r"))

    def load_manifest(self, *, cached: bool = False) -> Manifest:  # noqa: ARG002
        """Read the present manifest from the directory, without changing the members shown."""
        manifest, _ = read_manifest(self.store, versioned=False)
        return manifest

    def is_separate(self) -> bool:
        """Return whether a manifest or an embedding frame is in the directory. Raises the errors of `is_marked`."""
        return self.is_marked()

    def is_cached(self) -> bool:
        """Return False: the cache on disk has nothing of local files."""
        return False

    def ensure_manifest(self) -> None:
        """Do nothing: a local group without members needs no manifest."""

    def require_ledger(self) -> None:
        """Do nothing: the manifest of a local group can always list snapshots."""

    def update_manifest(self, change: Callable[[Manifest], Manifest]) -> Manifest:
        """Write the manifest that `change` makes from the present one, and return it.

        This takes the manifest's lock. Try again if another writer was faster. The members shown stay the same.
        """
        for _ in attempts(self.store):
            with self.store.lock(MANIFEST):
                manifest, version = read_manifest(self.store)
                self.require_same(manifest)
                # Another writer has replaced the manifest meanwhile: change the new one.
                with suppress(ConflictError):
                    manifest = change(manifest)
                    write_manifest(self.store, manifest, version)
                    return manifest
        raise too_many_conflicts(self.store)

    def recover(self) -> None:
        """Complete an interrupted commit; then the next use lists the members again.

        If the group was copied from an object store, make it a local group first. The manifest that this reads serves
        the next listing. Without an interrupted commit, nothing is locked or written.
        """
        manifest, version = read_manifest(self.store)
        if manifest.rows is not None:
            with self.store.lock(MANIFEST):
                localize(self.store, *read_manifest(self.store))
            self.refresh()
            return
        if manifest.pending and version != self._published:
            with self.store.lock(MANIFEST):
                manifest, version = read_manifest(self.store)
                publish_pending(self.store, manifest)
                self._published = version
            self.refresh()
        self._recovered = manifest

    # Members.

    def open(
        self,
        path: str,
        mode: Mode,
        *,
        lazy: bool = False,  # noqa: ARG002
    ) -> Handle:
        """Open a member by its path, through the inner group that owns it, if there is one.

        A reader gets the summary of the member, if that suffices, so `lazy` changes nothing. A writer first completes
        an interrupted commit. Embedded members are opened read-only. ConflictError: a later transaction has changed the
        member.
        """
        if is_embedded(path):
            return embedded.open_member(self._open_embedding_frame(), path)
        mount = self.mount_of(path)
        if mount is not None:
            owner, inner = mount
            return owner.open(inner, mode)
        if mode == "r":
            return self._promise(path) or Handle(self.load_current(path), mode)
        # A writer must find the frame of the last commit in its place.
        self.recover()
        return self.open_for_change(path)

    def open_for_change(self, path: str) -> Handle:
        """Open a member of this group for writing, in the state that belongs to the manifest shown.

        If a new frame waits for the place of the member, this puts it there, because no writer may change a frame that
        waits in another place. Raises ValueError if an inner group owns the member.
        """
        self.require_own(path)
        manifest, _ = self._ensure_listing()
        if path in manifest.pending:
            publish_waiting(LocalMember(self.store, path))
        return Handle(self._load_own_current(path), "r+")

    def _promise(self, path: str) -> Handle | None:
        """Return a read-only handle that shows the summary of a member, and reads the member when it must.

        This reads the head of the member, to check the summary. Return None if the member must be read at once.
        """
        # The summary of a member with a pending step describes the state before the step.
        if path in self.manifest.pending:
            return None
        record = self._find_summary(path)
        return None if record is None else summaries.promise(self.store_of(path), record)

    def state_of(self, path: str, manifest: Manifest) -> Revision:
        """Load the state of a member, as it is after the pending steps of a manifest."""
        mount = self.mount_of(path)
        if mount is not None:
            owner, inner = mount
            return owner.state_of(inner, owner.load_manifest())
        return self._load_own_state(path, manifest)

    @property
    def keeps_states_in_frames(self) -> bool:
        """True: a snapshot of a local group names states that the frames keep."""
        return True

    def state_at(
        self,
        manifest: Manifest,
        title: str,
        state: MemberState,
        *,
        deep: bool = False,
        cached: bool = False,  # noqa: ARG002
    ) -> Revision | None:
        """Load the state of a member at a snapshot from the member's frame; None if the frame does not keep it."""
        try:
            source = self.state_of(state.path, manifest)
        except MISSING:
            return None
        identity = manifest.identity.encode()
        return intact.find_intact_state(source, state, identity, repr(title), deep=deep)

    def _load_own_state(self, path: str, manifest: Manifest) -> Revision:
        """Load the state of a member that no inner group owns, as it is after the pending steps of a manifest.

        If the member no longer has the state that this home has remembered, the home forgets that state.
        """
        last = self._states.get(path)
        source = load_local_member(self.store, manifest, path, last)
        # Other writers change this member as well, so comparing it with the last commit of this home saves no more
        # time.
        if last is not None and source.state is not last[0]:
            self._states.pop(path, None)
        return source

    def remember(self, path: str, committed: Revision) -> None:
        """Remember the state that a transaction has given a member, and forget the oldest of too many states.

        States with many chunks, and states that other software wrote, are not remembered.
        """
        described = committed.frame
        if described.is_ours and committed.header and described.nchunks <= _MOST_CHUNKS:
            self._states[path] = committed.state, committed.header
            self._states.move_to_end(path)
            if len(self._states) > _MOST_STATES:
                self._states.popitem(last=False)

    def load_current(self, path: str) -> Revision:
        """Load the state of a member that belongs to the manifest shown.

        Raises ConflictError if the member is missing, or if a later transaction has changed it.
        """
        mount = self.mount_of(path)
        if mount is not None:
            owner, inner = mount
            return owner.load_current(inner)
        return self._load_own_current(path)

    def _load_own_current(self, path: str) -> Revision:
        """Load the state of a member that no inner group owns. Raises the errors of `load_current`."""
        manifest, _ = self._ensure_listing()
        try:
            source = self._load_own_state(path, manifest)
        except MISSING:
            # The caller may have the path from an earlier list: a commit through this home shows its own manifest,
            # but not the changes that other writers made before it.
            raise stale_reader(self.url) from None
        identity, number, _ = source.state.annotations.group_commit or ("", 0, "")
        # The member has the state of a later commit of the group, unless its directory was copied from another group.
        if number and (identity != manifest.identity or number > manifest.number):
            now = self.load_manifest()
            if now.identity == identity and now.commit != manifest.commit:
                raise stale_reader(self.url)
        return source

    # Transactions.

    def begin_view(self, *, explicit: bool) -> Self:
        """Return a home for a new transaction, which keeps showing the members that this home shows now.

        Only an explicit transaction also keeps showing them while this home commits other changes. Raises ConflictError
        if the directory was deleted or renamed since this home has first shown its members.
        """
        self.require_same()
        with self._mutex.held:
            view = self.copy()
            if explicit:  # a copy of very many members takes time, and other transactions do not last long
                view.show(view.manifest, view.members().copy())
        return view

    def medium(self) -> Disk:
        """Return a new medium for a commit to the directory that this home has first shown."""
        return Disk(self.store, self._first[0])

    def find_generation(self, path: str) -> tuple[str, None]:
        """Return the path of the frame with the state of a member, and None: only the frame tells the generation.

        An embedded member has its state in the embedding frame.
        """
        return EMBEDDED if is_embedded(path) else path, None

    def is_unadopted(self, path: str) -> bool:  # noqa: ARG002
        """Return False: members on a local disk need not note their group."""
        return False

    def require_shown(self, path: str, revision: Revision) -> None:
        """Do nothing: members on a local disk are read at their present state, which the commit compares."""

    def begin_member(
        self,
        change: GroupChange,
        name: str,
        suffix: str,
        new: NewFrame,
        *,
        overwrite: bool,
    ) -> tuple[str, MemberChange]:
        """Begin a new member in a place next to its path; return the path, and the change with the draft from `new`.

        In an explicit transaction, the draft gets a note of the commit. Raises ValueError if an inner group owns the
        path, and the errors of `_require_free_place` if the path is not free.
        """
        path = name + suffix
        self.require_own(path)
        overwrite = overwrite or name in change.removed
        if not overwrite or path not in change.removed.values():
            _require_free_place(self.store_of(path), overwrite=overwrite, is_explicit=change.explicit)
        # A random token, because several writers may be making the same member.
        token = os.urandom(8).hex()
        # This place never makes the directory of the group, which may have been renamed.
        place = FreePlace(self.store_of(staged_path(path, token, sparse=False)))
        draft = new(place, overwrite=False)
        if change.explicit:
            draft.annotate(group_commit=change.next_note(path))
        return path, MemberChange(name, draft, token)

    def show_commit(self, committed: Committed, change: GroupChange) -> None:
        """Show the manifest of the commit, and the members as its changes have left them."""
        with self._mutex.held:
            # This home may have committed other changes since the transaction began.
            members = self.members()
            if change.explicit and (change.removed or change.new):
                members = members.copy()  # other threads may be iterating over the list
            change.apply_to(members)
            self.show(committed.manifest, members)


def _unpickle(
    kind: type[LocalGroup],
    address: str,
    storage_options: Mapping[str, Any],
    listing: tuple[Manifest, Members] | None,
    first: tuple[int, str],
) -> LocalGroup:
    """Make a home from its pickle. It refuses to change another directory or group than the `first` one."""
    group = kind(address, storage_options, listing)
    group._first = first
    return group


def _require_free_place(store: Store, *, overwrite: bool, is_explicit: bool) -> None:
    """Raise FileExistsError if a file or directory is in the place of a new member.

    With `overwrite`, a frame may be there. A directory may be there if it has only what a late writer left, who did not
    notice that its frame was deleted. The group shows no member there, so any other frame is newer: with `is_explicit`,
    as in `GroupChange`, this raises ConflictError. Another writer may be deleting the frame, so this tries again for a
    while, and then raises the last error, which may also say that the directory has gone.
    """
    tries = attempts(store)
    while True:
        try:
            require_free(store, {"": FIRST_BYTES, FRAME_NAME: FIRST_BYTES}, "a frame", overwrite=overwrite)
        except (FileExistsError, *MISSING) as error:
            if is_abandoned(store):
                return
            # The view shows no member there, so this one is newer.
            if is_explicit and inspect_place(store).frame is not None:
                raise ConflictError(f"another writer was faster: {error}") from None
            # Another writer may be deleting it right now.
            if next(tries, None) is None:
                raise
        else:
            return
