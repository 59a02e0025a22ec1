"""Where the members of a group are: in a directory, or in a prefix of an object store.

In a local directory the files are the list of members, as for python-blosc2. An object store is never listed when it
can be helped, because that is slow, and shows the writes of others one by one: there the names are in one object, which
is replaced as a whole. Where it is missing, as in a directory that was copied there, the store is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from b2array import config, snapshot
from b2array.errors import ConflictError, FormatError, ReadOnlyError
from b2array.members import EMBEDDED, LIST_NAME, MemberList, found
from b2array.opening import create_schunk
from b2array.schunk import Mode, SChunk
from b2array.spans import Span
from b2array.storage import Stamp, Store, open_store

__all__ = ["Directory", "joined_url"]


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


class Directory:
    """The members of a group in a directory or prefix.

    Parameters
    ----------
    url : str
        Where it is.
    storage_options : mapping
        For fsspec.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        self._address = url
        self._options = dict(storage_options)
        self.store = self.store_of("")

    def __reduce__(self) -> tuple[Any, ...]:
        return Directory, (self._address, self._options)

    @property
    def url(self) -> str:
        """Where the group is, without secrets."""
        return self.store.url.rstrip("/")

    def address(self, path: str) -> str:
        """Return the URL of a member's path."""
        return joined_url(self._address, path)

    @property
    def options(self) -> dict[str, Any]:
        """What `open_store` takes for a member."""
        return {"storage_options": self._options}

    def store_of(self, path: str) -> Store:
        """Return the store of a path; of the directory itself for the empty one."""
        address = self.address(path) if path else self._address
        return open_store(address, **self.options)

    # The list.

    @property
    def is_local(self) -> bool:
        """Whether the files themselves are the list."""
        return self.store.appendable

    def exists(self) -> bool:
        """Whether there is a group: a list, an embedding frame, or a directory."""
        heads = self.store.head([LIST_NAME, EMBEDDED], 8)
        if any(not isinstance(head, Exception) for head in heads):
            return True
        absent = (FileNotFoundError, NotADirectoryError)
        for error in heads:
            if isinstance(error, Exception) and not isinstance(error, absent):
                raise error
        try:
            files = self.store.walk()
            return self.is_local or bool(found(files))
        except FileNotFoundError:
            return False

    def members(self) -> dict[str, str]:
        """Return the path of each member by its name, in the order of the names."""
        if self.is_local:
            return found(self.store.walk())
        listed, stamp = self._read_list()
        return dict(listed.members) if stamp else found(self.store.walk())

    def _read_list(self) -> tuple[MemberList, Stamp | None]:
        """Read the list of members and its version; where there is none, an empty one."""
        try:
            stamp = self.store.stamp(LIST_NAME)
            (data,) = self.store.read([Span(LIST_NAME, 0, stamp.size)], expected=stamp.version)
        except FileNotFoundError:
            return MemberList(), None
        return snapshot.located(f"{self.url}/{LIST_NAME}", lambda: MemberList.unpack(data)), stamp

    def change_list(self, verb: Callable[[dict[str, str]], object]) -> None:
        """Let `verb` change the names, and replace the list; again if another writer came first."""
        if self.is_local:
            return
        for attempt in range(config.retries + 1):
            with self.store.lock(LIST_NAME):
                listed, stamp = self._read_list()
                members = dict(listed.members) if stamp else found(self.store.walk())
                verb(members)
                content = MemberList(dict(sorted(members.items())), listed.unknown).pack()
                try:
                    if stamp:
                        self.store.replace(LIST_NAME, content, expected=stamp.version)
                    else:
                        self.store.create(LIST_NAME, content)
                except (ConflictError, FileExistsError):
                    if attempt == config.retries:
                        raise
                else:
                    return

    # Members.

    def open(self, path: str, mode: Mode) -> SChunk:
        """Open a member by its path."""
        store = self.store_of(path)
        try:
            return SChunk(snapshot.load(store), mode)
        except FileNotFoundError:
            raise FormatError(f"{self.url}: expected the member {path}, found nothing there") from None

    def initialise(self) -> None:
        """Make an empty group: an embedding frame, and a list where one is needed."""
        if self.store.guarantee == "read only":
            raise ReadOnlyError(f"{self.url} can only be read")
        with_meta = create_schunk(chunksize=2**13, meta={"b2tree": {"version": 1}})
        with_meta.vlmeta["estore_metadata"] = {"embed_map": {}, "current_offset": 0}
        self.store.create(EMBEDDED, with_meta.to_bytes())
        self.change_list(dict.items)

    def clear(self) -> None:
        """Remove a group and all its members."""
        heads = self.store.head([LIST_NAME, EMBEDDED], 8)
        if all(isinstance(head, Exception) for head in heads) and any(self.store.walk()):
            raise FileExistsError(f"{self.url} exists and is not a group that can be replaced")
        self.remove(self.members())
        self.store.delete([LIST_NAME, EMBEDDED])

    def remove(self, members: Mapping[str, str]) -> None:
        """Take members off the list, then remove their files."""

        def strike(listed: dict[str, str]) -> None:
            for name in members:
                listed.pop(name, None)

        self.change_list(strike)
        for path in members.values():
            self._remove_frame(path)

    def _remove_frame(self, path: str) -> None:
        store = self.store_of(path)
        try:
            names = store.walk()
        except (FileNotFoundError, NotADirectoryError):
            names = []
        index = [name for name in names if name == snapshot.FRAME_NAME]
        store.delete(index)
        store.delete([*(name for name in names if name not in index), ""])
        if self.is_local:
            self.store_of(path + ".b2lock").delete([""])
