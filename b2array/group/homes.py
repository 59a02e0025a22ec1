"""What a `Group` and its transactions need of the members of a group, in any kind of storage.

`Home`, for readers, is met by groups, archives, embedding frames, snapshots and transactions. `GroupHome` is a group
that can be changed; a third kind of storage needs a third subclass of it, beside `LocalGroup` and `ListedGroup`, which
`b2array.group.listed_group.group_at` chooses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, Protocol, Self

from b2array.catalog.ledgers import MemberState
from b2array.catalog.manifest import EMBEDDED, MANIFEST, Manifest
from b2array.catalog.names_of_members import Members
from b2array.commit.group_commit import Committed, GroupChange, Medium, MemberChange
from b2array.commit.handle import Handle, Mode
from b2array.format import summary
from b2array.frame.revision import Revision
from b2array.group.new_members import NewFrame
from b2array.store.base import MISSING, Store, Version, says_more

__all__ = ["GroupHome", "Home"]


class Home(Protocol):
    """Lists the members of a group and opens them, wherever they are."""

    @property
    def url(self) -> str:
        """The URL of the group, without secrets and without a slash at the end."""
        ...

    @property
    def store(self) -> Store:
        """The store of the group."""
        ...

    def members(self) -> Members:
        """Return the path of each member by its name, in the order of the names."""
        ...

    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:
        """Open a member by its path. With `lazy`, opening for reading may send no request before the first use."""
        ...

    def refresh(self) -> None:
        """Forget the list of members; the next use lists them again."""
        ...


class GroupHome(ABC):
    """A group that can be changed, and the members that it shows.

    Attributes
    ----------
    store : Store
        The store of the group.
    storage_options : dict
        The options for fsspec with which members are opened and made.
    is_local : bool
        Whether the files in a directory are the list of members, and the frames of members keep the states that
        snapshots name. Otherwise the manifest lists the members, and snapshots name revisions.
    """

    store: Store
    storage_options: dict[str, Any]
    is_local: ClassVar[bool]

    # The summaries of the manifest that was shown last, packed, and unpacked by the paths of the members.
    _records: tuple[bytes, dict[str, Any]]

    @property
    def url(self) -> str:
        """The URL of the group, without secrets and without a slash at the end."""
        url = self.store.url.rstrip("/")
        return f"{url}/" if url.endswith(":") else url

    def close(self) -> None:
        """Close files."""
        self.store.close()

    def is_marked(self) -> bool:
        """Return whether a manifest or an embedding frame exists; raise an error if the store does not tell."""
        heads = self.store.head([MANIFEST, EMBEDDED], 8)
        if any(not isinstance(head, Exception) for head in heads):
            return True
        for error in heads:
            if isinstance(error, Exception) and (says_more(error) or not isinstance(error, MISSING)):
                raise error
        return False

    def _find_summary(self, path: str) -> Any:
        """Return the record of a member's summary in the manifest shown; None without one. Keep all for later calls."""
        packed = self.manifest.summaries
        if self._records[0] is not packed:
            self._records = packed, summary.unpack_all(packed)
        return self._records[1].get(path)

    # The members that this home shows.

    @property
    @abstractmethod
    def manifest(self) -> Manifest:
        """The manifest of the members that this home shows."""

    @abstractmethod
    def versioned_manifest(self) -> tuple[Manifest, Version | None]:
        """Return the manifest of the members that this home shows, and its version; None for an unknown version."""

    @abstractmethod
    def members(self) -> Members:
        """Return the path of each member by its name, in the order of the names."""

    @abstractmethod
    def copy(self) -> Self:
        """Return a second home that shows the same members."""

    @abstractmethod
    def look_for_manifest(self) -> bool:
        """Return whether there is a manifest that can be read. Ignores all errors.

        In an object store, the home shows the members of this manifest from now on.
        """

    @abstractmethod
    def show_files(self, paths: Collection[str]) -> None:
        """Show the members with these files, for a group whose manifest cannot be read."""

    @abstractmethod
    def show_near(self, names: Collection[str]) -> None:
        """Show at least the members that decide whether new members can have these names, in their latest states."""

    @abstractmethod
    def look_for(self, name: str) -> bool:
        """Return whether members with this name, or below it, were made since this home listed the members.

        The home shows them from now on, unless it would then show a part of a transaction.
        """

    @abstractmethod
    def refresh(self) -> None:
        """Forget the list of members; the next use lists them again."""

    @abstractmethod
    def require_same(self, manifest: Manifest | None = None) -> None:
        """Raise ConflictError if the group was deleted or renamed since this home has first shown its members.

        A caller that has read the `manifest` passes it: another group may be there.
        """

    # The group in the store.

    @abstractmethod
    def load_manifest(self, *, cached: bool = False) -> Manifest:
        """Read the present manifest from the store, without changing the members shown.

        With `cached`, it may come from the cache on disk: only a reader may pass it. Raises the errors of
        `read_manifest`.
        """

    @abstractmethod
    def update_manifest(self, change: Callable[[Manifest], Manifest]) -> Manifest:
        """Write the manifest that `change` makes from the present one, and return it.

        Try again if another writer was faster. The members shown stay the same. ConflictError: another group is in the
        place now, or too many other writers were faster. Raises the errors of `change` as well.
        """

    @abstractmethod
    def recover(self) -> None:
        """Complete the commit of a writer that was killed; in an object store, do nothing.

        If the group was copied from an object store to a local disk, this makes it a local group.
        """

    @abstractmethod
    def is_separate(self) -> bool:
        """Return whether a manifest or an embedding frame marks this group.

        Otherwise it exists only in the names of an outer group's members.
        """

    @abstractmethod
    def is_cached(self) -> bool:
        """Return whether the cache on disk has the manifest of the group."""

    @abstractmethod
    def ensure_manifest(self) -> None:
        """Write a manifest without members if it is missing, where a group needs one; show the manifest."""

    @abstractmethod
    def require_ledger(self) -> None:
        """Raise UnsupportedError if the manifest cannot list snapshots."""

    # Groups inside this one.

    @abstractmethod
    def mount_of(self, path: str) -> tuple[GroupHome, str] | None:
        """Return the inner group that opens a member, and the member's path there; None if this group opens it."""

    @abstractmethod
    def own_members(self, members: Mapping[str, str]) -> dict[str, str]:
        """Return the members, given by names and paths, that belong to this group and to no group inside it."""

    @abstractmethod
    def require_own(self, path: str) -> None:
        """Raise ValueError if an inner group owns a member, because a commit writes one manifest."""

    # Members.

    @abstractmethod
    def address(self, path: str) -> str:
        """Return the URL of a path in the group. ValueError or FormatError: the URL would name another place."""

    @abstractmethod
    def store_of(self, path: str) -> Store:
        """Return the store of the frame at a path in the group, which refuses links. ValueError: as for `address`."""

    @abstractmethod
    def embedded_paths(self) -> Mapping[str, str]:
        """Return a path for each member that a commit can remove from the embedding frame, by its name."""

    @abstractmethod
    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:
        """Open a member by its path.

        ConflictError: the list of members is out of date, or a later transaction has changed the member. FormatError:
        the member is damaged or missing. Embedded members are opened read-only. With `lazy`, a reader gets the summary
        of the member, if there is one, and the member is read at its first use.
        """

    @abstractmethod
    def open_for_change(self, path: str) -> Handle:
        """Open a member of this group for writing, in the state that belongs to the manifest shown."""

    @abstractmethod
    def load_current(self, path: str) -> Revision:
        """Load the state of a member that belongs to the manifest shown. Raises the errors of `open`."""

    @abstractmethod
    def find_generation(self, path: str) -> tuple[str, str | None] | None:
        """Return the path of the frame with the state of a member, and the generation of that state.

        The generation is None if only the frame tells it. Return None for a path that is no member's.
        """

    @abstractmethod
    def is_unadopted(self, path: str) -> bool:
        """Return whether a member must note its group before a commit can name its state."""

    @abstractmethod
    def require_shown(self, path: str, revision: Revision) -> None:
        """Raise ConflictError if a state that a transaction reads is later than the members that this home shows."""

    @abstractmethod
    def remember(self, path: str, committed: Revision) -> None:
        """Remember the state that a transaction has given a member, if that saves the next one a read."""

    @abstractmethod
    def state_of(self, path: str, manifest: Manifest) -> Revision:
        """Load the state of a member that belongs to a manifest.

        FileNotFoundError, ConflictError or FormatError: it is not there.
        """

    @property
    @abstractmethod
    def keeps_states_in_frames(self) -> bool:
        """Whether the frames of members keep the states that snapshots name; otherwise revisions have them."""

    @abstractmethod
    def state_at(
        self,
        manifest: Manifest,
        title: str,
        state: MemberState,
        *,
        deep: bool = False,
        cached: bool = False,
    ) -> Revision | None:
        """Load the state of a member at a snapshot that a manifest lists; None if the state is not in its place.

        Errors name the snapshot by its `title`. With `deep`, check that its chunks are intact as a whole, if other
        software has changed the member's file. With `cached`, the index may come from the cache on disk.
        """

    # Transactions.

    @abstractmethod
    def begin_view(self, *, explicit: bool) -> Self:
        """Return a home for a new transaction, which keeps showing the members that this home shows now.

        `explicit` is as for `GroupChange`. Raises ConflictError if the group was deleted or renamed since this home has
        first shown its members.
        """

    @abstractmethod
    def medium(self) -> Medium:
        """Return a new medium for a commit."""

    @abstractmethod
    def begin_member(
        self,
        change: GroupChange,
        name: str,
        suffix: str,
        new: NewFrame,
        *,
        overwrite: bool,
    ) -> tuple[str, MemberChange]:
        """Begin a new member where no reader looks; return its path, and the change with the draft from `new`.

        The path is `name` and `suffix`, or another suffix if that path cannot be used. With `overwrite`, a frame that
        the group does not list may be there. On a local disk, this raises FileExistsError or ConflictError if anything
        else is there, and ValueError if an inner group owns the path; in an object store, the commit finds out.
        """

    @abstractmethod
    def show_commit(self, committed: Committed, change: GroupChange) -> None:
        """Show the members after a commit of a transaction, which made this `change`."""
