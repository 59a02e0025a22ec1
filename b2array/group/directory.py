"""Where the members of a group are: in a directory, or in a prefix of an object store.

In a local directory the files are the list of members, as for python-blosc2. An object store is never listed when it
can be helped, because that is slow, and shows the writes of others one by one: there the names are in one object, which
is replaced as a whole. Where it is missing, as in a directory that was copied there, the store is listed.

Either kind has such an object once several members have been changed at once; see `b2array.group.transaction`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

from b2array import config
from b2array.array.opening import create_schunk
from b2array.array.schunk import SChunk
from b2array.engine import snapshot
from b2array.engine.handle import Handle, Mode
from b2array.engine.snapshot import Snapshot
from b2array.engine.source import FRAME_NAME
from b2array.errors import ConflictError, FormatError, LimitError, ReadOnlyError, located
from b2array.format.state import State
from b2array.group import embedded
from b2array.group.manifest import EMBEDDED, LIST_NAME, MemberList, found
from b2array.store.atomic import require_free
from b2array.store.base import Stamp, Store, attempts, too_many_conflicts
from b2array.store.open import open_store
from b2array.store.spans import Span

__all__ = ["MARK", "Directory", "beside", "joined_url", "mark_of"]

MARK = "group"
"""Entry of a member's extras: identity of the list, and number of the commit that the member was last changed in."""

_ABSENT = (FileNotFoundError, NotADirectoryError)


def joined_url(url: str, path: str) -> str:
    """Return the URL of a path below another URL, which may be a chain and hold a query string.

    Examples
    --------
    >>> joined_url("/data/group.b2d/", "a/b.b2nd")
    '/data/group.b2d/a/b.b2nd'
    >>> joined_url("simplecache::https://example.org/group?key=1", "a.b2nd")
    'simplecache::https://example.org/group/a.b2nd?key=1'
    >>> joined_url("zip://inside::file:///archive.zip", "a.b2nd")
    'zip://inside/a.b2nd::file:///archive.zip'
    """
    links = url.split("::")
    at = next((n for n, link in enumerate(links) if "://" in link), len(links) - 1)
    place, mark, query = links[at].partition("?") if "://" in links[at] else (links[at], "", "")
    links[at] = f"{place.rstrip('/')}/{path}{mark}{query}"
    return "::".join(links)


def beside(path: str, token: str, *, sparse: bool) -> str:
    """Return the path of the object that is to take the place of a member's frame."""
    return f"{path}/{FRAME_NAME}.{token}.b2tmp" if sparse else f"{path}.{token}.b2tmp"


class Directory:
    """The members of a group in a directory or prefix, as they were when they were first asked for.

    Parameters
    ----------
    url : str
        Where it is.
    storage_options : mapping
        For fsspec.
    known : tuple, optional
        The list of members, and their paths by their names.
    """

    def __init__(
        self, url: str, storage_options: Mapping[str, Any], known: tuple[MemberList, dict[str, str]] | None = None
    ) -> None:
        self._address = url
        self._options = dict(storage_options)
        self._known = known
        self.store = open_store(url, **self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return Directory, (self._address, self._options, self._known)

    @property
    def url(self) -> str:
        """Where the group is, without secrets."""
        return self.store.url.rstrip("/")

    @property
    def options(self) -> dict[str, Any]:
        """What `open_store` takes for a member."""
        return {"storage_options": self._options}

    @property
    def is_local(self) -> bool:
        """Whether the files themselves are the list."""
        return self.store.appendable

    def address(self, path: str) -> str:
        """Return the URL of a member's path."""
        return joined_url(self._address, path)

    def store_of(self, path: str) -> Store:
        """Return the store of a member's path."""
        return open_store(self.address(path), **self.options)

    def exists(self) -> bool:
        """Whether there is a group: a list, an embedding frame, a local directory, or a prefix with members."""
        heads = self.store.head([LIST_NAME, EMBEDDED], 8)
        if any(not isinstance(head, Exception) for head in heads):
            return True
        for error in heads:
            if isinstance(error, Exception) and not isinstance(error, _ABSENT):
                raise error
        try:
            files = self.store.walk()
        except (*_ABSENT, PermissionError):  # who may not list is told what there is by a list
            return False
        return self.is_local or bool(found(files))

    # The list.

    def members(self) -> dict[str, str]:
        """Return the path of each member by its name, in the order of the names."""
        return self._state()[1]

    def refresh(self) -> None:
        """Ask for the members anew when they are next needed."""
        self._known = None

    def _state(self) -> tuple[MemberList, dict[str, str]]:
        known = self._known
        if known is None:
            listed, members = self._local_state() if self.is_local else self._remote_state()
            known = self._known = listed, dict(sorted(members.items()))
        return known

    def _remote_state(self) -> tuple[MemberList, dict[str, str]]:
        listed, _ = self.read_list()
        return listed, {name: path for name, path in (listed.members or {}).items() if path not in listed.hidden}

    def _local_state(self) -> tuple[MemberList, dict[str, str]]:
        """Read list and files, again if a commit came in between."""
        listed, _ = self._stored_list()
        for _ in range(config.retries + 1):
            before = listed
            files = self.store.walk()
            # The list after the files: what is being made hides in it before it is there.
            listed, _ = self._stored_list()
            if listed == before:
                break
        return listed, self._files(files, listed.hidden)

    def _files(self, paths: Collection[str], hidden: Collection[str] = ()) -> dict[str, str]:
        """Find the members by their files, and those in the embedding frame."""
        inner = embedded.extents(self._embedding("r")) if EMBEDDED in paths else {}
        shown = {name: embedded.path_of(name) for name in inner}
        # Of a member that is replaced there may be two files, one of them hidden.
        return {**shown, **found(path for path in paths if path.removesuffix(f"/{FRAME_NAME}") not in hidden)}

    def _embedding(self, mode: Mode) -> SChunk:
        return SChunk(Handle(snapshot.load(self.store_of(EMBEDDED)), mode))

    def read_list(self) -> tuple[MemberList, Stamp | None]:
        """Read the list of members and its version. Where there is none, there is no version either."""
        listed, stamp = self._stored_list()
        if listed.members is None and not self.is_local:
            listed = replace(listed, members=self._files(self.store.walk()))
        return listed, stamp

    def _stored_list(self) -> tuple[MemberList, Stamp | None]:
        limit = config.limits.metadata_nbytes
        (head,) = self.store.head([LIST_NAME], limit)
        stamp = None
        if not isinstance(head, Exception) and head.stamp is None and self.store.guarantee != "read only":
            # The version first: the list that is read later is at least as new, so that no update is lost.
            stamp = self.store.stamp(LIST_NAME)
            (head,) = self.store.head([LIST_NAME], limit)
        if isinstance(head, _ABSENT):
            return MemberList(), None
        if isinstance(head, Exception):
            raise head
        place, data = f"{self.url}/{LIST_NAME}", head.data
        if len(data) == limit:
            raise LimitError(f"{place} has {limit} bytes or more")
        return located(place, lambda: MemberList.unpack(data)), head.stamp or stamp

    def stored_form(self, listed: MemberList) -> MemberList:
        """Return a list as it is stored: without members where the files are the list."""
        return replace(listed, members=None) if self.is_local else listed

    def write_list(self, listed: MemberList, stamp: Stamp | None) -> None:
        """Put a list in the place of the one with that stamp; hold the lock.

        Raises
        ------
        ConflictError
            Another writer came first.
        """
        listed = self.stored_form(listed)
        content = listed.pack()
        try:
            if stamp is None:
                self.store.create(LIST_NAME, content)
            else:
                self.store.replace(LIST_NAME, content, expected=stamp.version)
        except (ConflictError, FileExistsError) as error:
            # The answer to a request that succeeded may have been lost.
            if self._stored_list()[0] != listed:
                raise ConflictError(f"{self.url} was changed by another writer") from error

    @contextmanager
    def making(self, name: str, path: str, *, overwrite: bool = False) -> Iterator[None]:
        """Note the member that is made inside the block."""
        self._check_hidden(path, overwrite=overwrite)
        before = self.members().get(name, "")
        yield
        self.change(name, path)
        if embedded.embedded(before):
            embedded.remove(self._embedding("r+"), [name])

    def _check_hidden(self, path: str, *, overwrite: bool) -> bool:
        hidden = path in self.read_list()[0].hidden
        if hidden and not overwrite:
            raise FileExistsError(
                f"{self.url}: {path} belongs to a transaction that is under way, or was interrupted; overwrite=True"
                " takes its place"
            )
        return hidden

    def change(self, name: str = "", path: str = "", *, without: Mapping[str, str] | None = None) -> None:
        """Note that a member has come, or that members have gone."""
        come, gone = {name: path} if name else {}, without or {}
        listed, members = self._state()
        if not self.is_local or path in listed.hidden or listed.members is not None:
            listed = self._change_list(come, gone)
        if not self.is_local:
            members = {known: at for known, at in (listed.members or {}).items() if at not in listed.hidden}
        members = {known: at for known, at in {**members, **come}.items() if known not in gone}
        self._known = listed, dict(sorted(members.items()))

    def _change_list(self, come: Mapping[str, str], gone: Collection[str]) -> MemberList:
        """Replace the list; again if another writer came first."""
        for _ in attempts(self.store):
            with self.store.lock(LIST_NAME):
                listed, stamp = self.read_list()
                members = {name: path for name, path in {**(listed.members or {}), **come}.items() if name not in gone}
                hidden = tuple(path for path in listed.hidden if path not in come.values())
                listed = replace(listed, members=dict(sorted(members.items())), hidden=hidden)
                with suppress(ConflictError):
                    self.write_list(listed, stamp)
                    return listed
        raise too_many_conflicts(self.store)

    # Members.

    def open(self, path: str, mode: Mode) -> Handle:
        """Open a member by its path.

        Raises
        ------
        FormatError
            The list names it, but it is not there.
        ConflictError
            A later commit of several members has changed it.
        """
        if embedded.embedded(path):
            return embedded.open_embedded(self._embedding("r"), path)
        store = self.store_of(path)
        held = self.current(store, path)
        if mode == "r+" and path in self._state()[0].pending:
            self.settle()
            held = self.current(store, path)
        return Handle(held, mode)

    def current(self, store: Store, path: str) -> Snapshot:
        """Return the state of a member that belongs to the list."""
        listed, _ = self._state()
        try:
            held = snapshot.load(store)
        except _ABSENT:
            if self._stored_list()[0] != listed:
                raise ConflictError(f"{self.url} was changed since it was opened; call refresh()") from None
            raise FormatError(f"{self.url}: expected the member {path}, found nothing there") from None
        ident, number = mark_of(held.state)
        if path in listed.pending and (ident != listed.ident or number < listed.number):
            return self._ahead(store, path, held, listed.pending[path])
        if ident and (ident != listed.ident or number > listed.number):
            now, _ = self.read_list()
            if now.ident == ident and (now.ident, now.number) != (listed.ident, listed.number):
                raise ConflictError(f"{self.url} was changed since it was opened; call refresh()")
        return held

    def _ahead(self, store: Store, path: str, held: Snapshot, change: bytes | str) -> Snapshot:
        """Return the state that a commit is about to publish, or the present one if it has done so meanwhile."""
        with suppress(FormatError, *_ABSENT):
            if isinstance(change, bytes):
                return snapshot.restore(store, change, held.version)
            sparse = held.name == FRAME_NAME
            other = self.store_of(beside(path, change, sparse=sparse))
            if not sparse:
                return snapshot.load(other)
            (data,) = other.read([Span("", 0, other.stamp("").size)])
            return snapshot.restore(store, data, held.version)
        return snapshot.load(store)

    def settle(self) -> None:
        """Publish what a commit of several members left, if it was interrupted."""
        if not self._state()[0].pending:
            return
        with self.store.lock(LIST_NAME):
            listed, stamp = self.read_list()
            if listed.pending:
                self.publish(listed)
                self.write_list(replace(listed, pending={}), stamp)
        self.refresh()

    def publish(self, listed: MemberList, *, locked: Collection[str] = ()) -> None:
        """Let members' own frames be what the list says; hold its lock, and those of the members `locked`."""
        for path, change in listed.pending.items():
            store = self.store_of(path)
            for _ in attempts(store):
                held = snapshot.load(store)
                ident, number = mark_of(held.state)
                if ident == listed.ident and number >= listed.number:
                    break
                ahead = self._ahead(store, path, held, change)
                if mark_of(ahead.state) != (listed.ident, listed.number):
                    break  # other software has put something else there
                with suppress(ConflictError):
                    self._publish_one(store, path, held, change, locked=path in locked)

    def _publish_one(self, store: Store, path: str, held: Snapshot, change: bytes | str, *, locked: bool) -> None:
        with nullcontext() if locked else store.lock(held.name):
            if snapshot.load(store).generation != held.generation:
                return
            if isinstance(change, bytes):
                store.patch("", 0, change)
                return
            other = self.store_of(beside(path, change, sparse=held.name == FRAME_NAME))
            if self.is_local:
                store.adopt(other.url, held.name, exclusive=False)
                return
            (data,) = other.read([Span("", 0, other.stamp("").size)])
            store.replace(held.name, data, expected=held.version)
        other.delete([""])

    def initialise(self) -> None:
        """Make an empty group: an embedding frame, and a list where one is needed."""
        if self.store.guarantee == "read only":
            raise ReadOnlyError(f"{self.url} can only be read")
        self._embed_nothing()
        if not self.is_local:
            self.write_list(MemberList({}), None)

    def complete(self) -> None:
        """Make a directory of arrays one that python-blosc2 takes for a store."""
        if self.is_local and isinstance(self.store.head([EMBEDDED], 1)[0], FileNotFoundError):
            with suppress(FileExistsError):
                self._embed_nothing()

    def _embed_nothing(self) -> None:
        empty = create_schunk(chunksize=2**13, meta={"b2tree": {"version": 1}})
        empty.vlmeta["estore_metadata"] = {"embed_map": {}, "current_offset": 0}
        self.store.create(EMBEDDED, empty.to_bytes())

    def check_replaceable(self) -> None:
        """Raise FileExistsError if there is something that is not known to be a group."""
        kinds = {LIST_NAME: b"", EMBEDDED: b""}
        require_free(self.store, kinds, "a group", overwrite=True, name=LIST_NAME, alone=True)

    def clear(self) -> None:
        """Remove a group and all its members."""
        self.check_replaceable()
        self.remove(self.members())
        self.store.delete([LIST_NAME, EMBEDDED])
        self.refresh()

    def remove(self, members: Mapping[str, str]) -> None:
        """Take members off the list, then remove their files."""
        self.change(without=members)
        self.remove_frames(members)

    def remove_frames(self, members: Mapping[str, str]) -> None:
        """Remove what members consist of."""
        inner = [name for name, path in members.items() if embedded.embedded(path)]
        if inner:
            embedded.remove(self._embedding("r+"), inner)
        for path in members.values():
            if not embedded.embedded(path):
                self.remove_files(path)

    def remove_files(self, path: str) -> None:
        """Remove the frame at a path."""
        store = self.store_of(path)
        try:
            names = store.walk()
        except _ABSENT:
            names = []
        # The index first, so that nobody finds one without its chunks.
        store.delete(sorted(names, key=lambda name: name != FRAME_NAME))
        store.delete([""])
        if self.is_local:
            self.store_of(path + ".b2lock").delete([""])


def mark_of(state: State) -> tuple[str, int]:
    """Return identity of the list and number of the commit that a frame says it was last changed in."""
    mark = state.annotations.entry(MARK)
    if isinstance(mark, list | tuple) and len(mark) == 2 and isinstance(mark[0], str) and type(mark[1]) is int:
        return mark[0], mark[1]
    return "", 0
