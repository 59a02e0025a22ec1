"""Groups: directories, prefixes and archives of arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, TypeVar, Unpack, cast, get_args

import numpy as np
import numpy.typing as npt

from b2array import config, neighbours, threads
from b2array.accessors import dataset_of
from b2array.array import array_copying, drafts
from b2array.array.array import NDArray
from b2array.array.array_snapshots import SnapshotInfo, SnapshotTable, make_entry
from b2array.array.at_times import At, name_of, open_found
from b2array.array.described import Attributes
from b2array.array.drafts import AnyPlace, ArrayOptions, Kind, MemberKeywords, Shape, takes
from b2array.array.many import read_many
from b2array.array.objects import Items, holds_items
from b2array.array.schunk import SChunk
from b2array.catalog.group_places import group_of
from b2array.catalog.ledgers import group_ledger
from b2array.catalog.manifest import ARRAY, ATTRS, OTHER, Manifest, check_name, check_new_name, is_attrs, is_embedded
from b2array.catalog.names_of_members import Members, check_new
from b2array.commit.cursor import Following
from b2array.commit.draft import Draft
from b2array.commit.frame_commit import commit
from b2array.commit.handle import Handle, Mode
from b2array.display.text_tables import Block, count_text
from b2array.errors import B2ArrayError, ConflictError, ReadOnlyError, warn
from b2array.format.b2nd import is_typed_array
from b2array.format.foreign import check_ending
from b2array.group import embedded, snapshot_list, snapshot_writing, unpacked, whole
from b2array.group.archive import Archive
from b2array.group.blosc2_tables import Table, is_table, refuse_parts
from b2array.group.embedded import EMBED_SUFFIX, EmbedFile
from b2array.group.group_attributes import Attrs, require_writable
from b2array.group.group_forks import Changes, GroupFork
from b2array.group.group_snapshot import SnapshotHome, find_snapshot
from b2array.group.homes import GroupHome, Home
from b2array.group.listed_group import group_at
from b2array.group.new_members import NewFrame, copier_of
from b2array.group.snapshot_list import GroupDiff
from b2array.group.transaction import Transaction, begin, changing, committing
from b2array.group.tree import Names, Tree
from b2array.keywords import nearest, refuse_calls, renamed, spell_out
from b2array.printable import printable
from b2array.store.base import attempts
from b2array.store.open import address_of, cut, open_store
from b2array.store.open_file import BinaryFile, is_open_file

if TYPE_CHECKING:
    import xarray as xr
    from fsspec import AbstractFileSystem

__all__ = ["AnyMode", "Group", "check_mode", "open_group", "put_member", "require_free_name"]

AnyMode = Literal["r", "r+", "a", "w", "w-", "x"]
MODES: Final = get_args(AnyMode)

_OPENED_AT_ONCE = 16
H = TypeVar("H")
T = TypeVar("T")

refuse_calls("b2array.group", neighbours.MODULE["group"])


@spell_out()
def open_group(
    url: str | os.PathLike[str] | BinaryFile,
    mode: AnyMode = "r",
    *,
    attrs: Mapping[str, Any] | None = None,
    follow: bool = False,
    at: At = None,
    resume: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> Group:
    """Open a group of arrays, or make one.

    A local ``.b2z`` file holds a whole group. To make or change one, use the group in a ``with`` statement, or call
    `Group.close` at the end. Until then the members are in a directory ``.b2work`` next to the file. `Group.close`
    packs them into a new file, which replaces the old one in one step; readers see the old file until then. Only one
    writer at a time can change the file.

    Parameters
    ----------
    url : str, os.PathLike or binary file
        A directory, a prefix that fsspec understands, or a ``.b2z`` file, which python-blosc2 can also read and write.
        An archive can also be an open file, or a file from ``fsspec.open``. To change a group inside another group,
        open it by its own URL; the result is the same as ``group["part"]``.
    mode : {"r", "r+", "a", "w", "w-", "x"}
        "r": read; "r+": read and change; "a": like "r+", but make a missing group; "w": make an empty group, and
        replace an existing one; "w-" and "x": make a group, and refuse to replace one.
    attrs : mapping, optional
        The attributes of a new group, with the modes "w", "w-" and "x". They are a second commit.
    follow : bool, default False
        Whether the group, and the arrays opened through it, show the commits of other writers without `refresh`. Each
        use of them then checks the store first.
    at : str, datetime.datetime or datetime.date, optional
        The name of a snapshot, or a time, as for `open`; see `Group.snapshot`. A snapshot is read-only.
    resume : bool, optional
        For ``.b2z`` files whose last writer was killed or failed: whether to continue with its changes, or to remove
        them. By default such changes raise an error; mode "w" removes them.
    storage_options : mapping, optional
        Options for fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system; the URL is a path in it.

    Raises
    ------
    FileNotFoundError
        There is no group at the URL.
    FileExistsError
        Something exists at the URL; with "w", something other than a group.
    KeyError
        No snapshot has this name.
    ValueError
        The mode is unknown, or does not go with the other arguments.
    FormatError
        The URL names a file that is not an archive.
    ReadOnlyError
        The archive is not on a local disk, or the protocol can only read.
    ConflictError
        Another writer is changing the ``.b2z`` file, or did not finish, or another program has replaced the file.

    Examples
    --------
    >>> group = open_group("memory://station.b2d", "w")
    >>> group.create("air/temperature", data=[20.5, 21.0])
    <b2array.NDArray memory://station.b2d/air/temperature.b2nd shape=(2,) dtype=float64 chunks=(2,)>
    >>> group.attrs["place"] = "roof"
    >>> group["air"]["temperature"][:].tolist(), list(group), "air/pressure" in group
    ([20.5, 21.0], ['air'], False)
    """
    check_mode(mode, at, follow=follow)
    if attrs is not None and mode not in ("w", "w-", "x"):
        raise ValueError(
            f"attrs are for a new group, not for mode {mode!r}: group.attrs.update(...) changes attributes"
        )
    find = partial(name_of, at, lambda: open_group(url, storage_options=storage_options, fs=fs))
    name = find()
    if name is not None and name != at:
        return open_found(name, find, lambda it: open_group(url, at=it, storage_options=storage_options, fs=fs))
    group = _open_group(url, mode, follow, name, resume, storage_options, fs)
    if attrs:
        group.attrs.update(attrs)
    return group


def _open_group(  # noqa: PLR0911 - there are many kinds of places
    url: str | os.PathLike[str] | BinaryFile,
    mode: AnyMode,
    follow: bool,
    name: str | None,
    resume: bool | None,
    storage_options: Mapping[str, Any] | None,
    fs: AbstractFileSystem | None,
) -> Group:
    """Open a group, or make one, as `open_group` does; `name` is the name of a snapshot, or None for the present state.

    The caller has turned a time into a name, and sets the attributes.
    """
    if is_open_file(url):
        # An open file takes no options: `open_store` refuses them.
        open_store(url, storage_options=storage_options, fs=fs)
        return _open_file(url, mode, follow=follow, at=name)
    url, storage_options = address_of(cast(str | os.PathLike[str], url), storage_options, fs)
    address, options = os.fspath(url), storage_options or {}
    if name is not None:
        return _open_at_snapshot(address, options, name)
    if mode != "r" and unpacked.is_changeable_archive(address, options):
        directory = unpacked.open_unpacked(address, options, mode, resume=resume)
        return Group(directory, "", "r+", follow=follow)
    if address.endswith(EMBED_SUFFIX) and embedded.is_embed_file(address, options):
        return open_embed_file(address, mode, follow=follow, storage_options=options)
    required = mode in ("r", "r+")
    home = whole.home_of(address, options, required=required)
    if isinstance(home, Archive):
        if mode != "r":
            raise ReadOnlyError(
                f"{home.url} is an archive, which can only be read; a local file that ends with .b2z can be changed"
            )
        return Group(home, "", mode, follow=follow)
    if mode == "r":
        _prepare_group(home, mode, required=required)
        return Group(home, "", "r", follow=follow)
    outer_and_name = whole.find_outer_group(home)
    if outer_and_name is not None:
        outer, subgroup = outer_and_name
        return _prepare_subgroup(Group(outer, "", "r+", follow=follow), subgroup, mode)
    _prepare_group(home, mode, required=required)
    return Group(home, "", "r+", follow=follow)


@contextmanager
def _opened_or_made(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None,
    fs: AbstractFileSystem | None,
) -> Iterator[Group]:
    """Open a group for changes during the block, or make it; close it at the end.

    If the block fails, remove a group that was made; an existing archive stays as it was.
    """
    try:
        target, is_new = open_group(url, "r+", storage_options=storage_options, fs=fs), False
    except FileNotFoundError:
        target, is_new = open_group(url, "a", storage_options=storage_options, fs=fs), True
    try:
        if not is_new:
            _complete(target)
        yield target
        target.close()
    except BaseException as error:
        if is_new:
            _discard(target)
        target.__exit__(type(error), error, None)
        raise


def _complete(group: Group) -> None:
    """Add a missing embedding frame to a local group, as the mode "a" does. An archive being changed has one."""
    home = group._home
    if isinstance(home, GroupHome) and not isinstance(home, unpacked.Unpacked):
        whole.complete(home)


def _discard(group: Group) -> None:
    """Remove a new group that has no members yet; of an archive, the directory with all changes. A subgroup stays."""
    home = group._home
    if group._prefix:
        return
    if isinstance(home, unpacked.Unpacked):
        home.discard()
    elif isinstance(home, GroupHome):
        whole.discard(home)


def open_embed_file(
    address: str,
    mode: AnyMode,
    *,
    follow: bool,
    storage_options: Mapping[str, Any],
) -> Group:
    """Open an embedding store of python-blosc2, a file, as a group; raise ReadOnlyError for any mode but "r"."""
    home = EmbedFile(address, storage_options)
    if mode != "r":
        raise ReadOnlyError(
            f"{home.url} is an embedding store of python-blosc2, which can only be read; copy its members to a group"
        )
    return Group(home, "", mode, follow=follow)


def check_mode(mode: str, at: object, *, follow: bool) -> None:
    """Raise ValueError for an unknown mode, or for a mode or `follow` that a snapshot does not allow."""
    if mode not in MODES:
        known_modes = ", ".join(map(repr, MODES))
        raise ValueError(f"mode must be one of {known_modes}, not {mode!r}")
    if at is not None and (mode != "r" or follow):
        raise ValueError(f"a snapshot is opened for reading, and never changes: at={at!r} goes with mode 'r' alone")


def _prepare_group(home: GroupHome, mode: AnyMode, *, required: bool) -> None:
    """Make a missing group, and empty or complete an existing one, according to the mode.

    With `required`, the caller knows that the group exists. Unless it is opened for reading, this then completes an
    interrupted commit. Raises FileExistsError if a group exists that the mode does not replace, and ValueError for the
    URL of a new group that ends like a file of another kind.
    """
    url = home.store.url
    exists = required or whole.exists(home)
    if mode in ("w", "w-", "x") or not exists:
        path = cut(url)[1]
        check_ending(path, url, group=True)
    if mode in ("w-", "x") and exists:
        raise FileExistsError(f"{url} exists; mode='w' replaces a group")
    if not exists:
        whole.initialise(home)
    elif mode == "w":
        whole.clear(home)
    elif mode == "a":
        whole.complete(home)
    if mode != "r":
        home.recover()


def _prepare_subgroup(outer: Group, name: str, mode: AnyMode) -> Group:
    """Return a subgroup, which is a group in the names of the outer one; make or empty it first, as the mode says.

    Also completes an interrupted commit of the outer group. Raises FileExistsError if the subgroup exists, and the mode
    does not replace it.
    """
    home = cast(GroupHome, outer._home)
    home.recover()
    subgroup = outer._subgroup(name)
    if not home.members().is_group(name):
        if mode in ("w", "w-", "x"):
            check_ending(name, subgroup.url, group=True)
        return subgroup if mode == "r+" else outer.require_group(name)
    if mode in ("w-", "x"):
        raise FileExistsError(f"{subgroup.url} exists; mode='w' replaces a group")
    if mode == "w":
        with subgroup.transaction(replace=True) as changes:
            changes.attrs.require()
    return subgroup


def _open_at_snapshot(address: str, options: Mapping[str, Any], at: str) -> Group:
    """Open the group at a URL at its own snapshot, or else as a subgroup at a snapshot of the outer group.

    Raises KeyError if there is no such snapshot, and FileNotFoundError if the subgroup was not in it.
    """
    here = group_at(address, options)
    manifest = Manifest()
    # Without a manifest, the URL may name an archive or a group inside another one, which the code below looks for.
    with suppress(OSError, B2ArrayError):
        manifest = here.load_manifest(cached=True)
    if group_ledger(here.url, manifest).find(at) is not None:
        return Group(find_snapshot(here, at, manifest), "", "r")
    place = group_of(address, options)
    outer, name = (address, "") if place is None else (place.group, place.name)
    home = whole.home_of(outer, options)
    if isinstance(home, Archive):
        raise _make_snapshot_error(home.url, at)
    then = find_snapshot(home, at)
    if not then.members().is_group(name):
        raise FileNotFoundError(f"{home.url} had no group {name!r} at the snapshot {at!r}")
    prefix = f"{name}/" if name else ""
    return Group(then, prefix, "r")


def _make_snapshot_error(url: str, at: str) -> KeyError:
    """Return the error for a snapshot of a whole archive."""
    return KeyError(f"{url} has no snapshot {at!r}; archives keep snapshots of single arrays only")


def _open_file(file: BinaryFile, mode: AnyMode, *, follow: bool, at: str | None) -> Group:
    """Open the archive in an open file; ReadOnlyError for any mode but "r", KeyError for a snapshot `at` a name."""
    if mode != "r":
        raise ReadOnlyError(f"{type(file).__name__}: an open file can only be read; to change it, open it by its name")
    home = whole.home_in_file(file)
    if at is not None:
        raise _make_snapshot_error(home.url, at)
    return Group(home, "", mode, follow=follow)


class Group(MutableMapping[str, Any]):
    """Named arrays and groups, as a mapping that `open_group` returns.

    The mapping lists the arrays and groups directly in the group. A name with slashes names a member further down; a
    leading slash is ignored. A group exists as soon as the name of a member begins with the name of the group.

    A handle lists the members at the time of its first use, and shows its own changes; `refresh` shows the changes of
    other writers. An array opens in its latest state. If a `transaction` has changed the member since the handle listed
    it, opening it raises `ConflictError`: all members that one handle opens belong to one commit. Threads may share a
    handle for reading.
    """

    __slots__ = ("_follow", "_home", "_mode", "_prefix")

    def __init__(
        self,
        home: Home,
        prefix: str,
        mode: Mode,
        *,
        follow: bool = False,
    ) -> None:
        """Make a handle to the members of a home whose names begin with a prefix; `open_group` is for users."""
        self._follow = follow
        self._home = home
        self._prefix = prefix
        self._mode: Mode = mode

    @property
    def url(self) -> str:
        """Where the group is, without secrets."""
        url = f"{self._home.url}/{self._prefix}"
        return url if url.endswith("://") else url.rstrip("/")

    @property
    def name(self) -> str:
        """The name of this group in the outermost group; the outermost group is ""."""
        return self._prefix.rstrip("/")

    @property
    def parent(self) -> Group | None:
        """The group that contains this one; None for the outermost group."""
        if not self._prefix:
            return None
        outer = self.name.rpartition("/")[0]
        return self._with_prefix(f"{outer}/" if outer else "")

    @property
    def mode(self) -> Mode:
        """How the group was opened: "r" for reading, "r+" for reading and changing."""
        return self._mode

    @property
    def attrs(self) -> Attrs:
        """The attributes of the group, as a mapping. Each assignment is a commit, except in a transaction.

        If the handle follows other writers, this makes the home list the members again.
        """
        if self._follow:
            self._home.refresh()
        return Attrs(self._home, self._prefix, self._mode)

    if not TYPE_CHECKING:  # a type checker would accept any name as an attribute

        def __getattr__(self, name: str) -> NoReturn:
            hint = neighbours.hint(name, neighbours.GROUP)
            raise AttributeError(f"'Group' object has no attribute {name!r}{hint}", name=name, obj=self)

    def _members(self) -> Members:
        """Return the members of the outermost group; the home lists them again if the handle follows other writers."""
        if self._follow:
            self._home.refresh()
        return self._home.members()

    def _full_name(self, name: str) -> str:
        """Return the name of a member or a group in the outermost group, given its name in this group."""
        return f"{self._prefix}{name}".rstrip("/")

    def _below(self, name: str = "") -> dict[str, str]:
        """Return the paths of all members in and below a group, by their names relative to this group.

        `name` is a group or a member in this group; by default it is this group itself.
        """
        start = len(self._prefix)
        below = self._members().below(self._full_name(name))
        return {full[start:]: path for full, path in below.items()}

    def _list_names(self) -> Iterator[str]:
        """Yield the names of all members in and below this group; for a frame of attributes, the name of its group."""
        for name in self._below():
            # A frame of attributes is not a member, but its group exists because of it.
            yield name.removesuffix(ATTRS).rstrip("/") if is_attrs(name) else name

    def _subgroup(self, name: str) -> Group:
        """Return the group with a name in this group; it need not exist."""
        return self._with_prefix(f"{self._prefix}{name}/")

    def _with_prefix(self, prefix: str) -> Group:
        """Return the group whose members' names begin with a prefix, from the same home, in the same mode.

        It need not exist.
        """
        return Group(self._home, prefix, self._mode, follow=self._follow)

    def _open_path(self, path: str, *, lazy: bool = False) -> NDArray | SChunk | Items:
        """Open a member by its path, in the mode of the group; it follows other writers if the group does.

        A member that follows is not opened lazily.
        """
        if not self._follow:
            return _open_member(self._home, path, self._mode, lazy=lazy)
        member = _open_member(self._home, path, self._mode)
        cursor = Following(member._handle.revision)
        return type(member)(Handle(cursor, self._mode))

    def __getitem__(self, name: str) -> Any:
        """Open an array, a super-chunk or a group; a table or objects of python-blosc2 as `Table` or `Items`.

        If this handle knows no such member, it looks once for one that was made since, by its URL or by another
        handle. If the member belongs to a transaction that has changed more, only `refresh` shows it.

        Raises
        ------
        KeyError
            The group has no such member.
        FormatError, UnsupportedError
            The member is damaged, or the archive stores it in a way that cannot be read in place.
        ConflictError
            A transaction changed the member after this handle listed it, and the handle does not follow other writers.
        """
        # The usual case, with one call fewer.
        return self._with_retries(partial(self._open_name, name)) if self._follow else self._open_name(name)

    def _open_name(self, name: str) -> Any:
        """Open a member, a group or a table by its name, once; `__getitem__` tries again if the group follows."""
        full, path = self._locate(name)
        if path is not None:
            return self._open_path(path)
        return self._find_table(full) or self._with_prefix(f"{full}/")

    def _with_retries(self, look: Callable[[], T]) -> T:
        """Call `look`, which lists and opens members; in a group that follows, again after each ConflictError.

        The number of further calls is at most `config.retries`.
        """
        tries = iter(range(config.retries if self._follow else 0))
        while True:
            try:
                return look()
            except ConflictError:
                if next(tries, None) is None:
                    raise

    def _find_table(self, full: str) -> Table | None:
        """Return the group with a full name as a `Table` if python-blosc2 wrote it as one; otherwise None.

        This may read the description of the table.
        """
        prefix = f"{full}/"
        return Table(self._home, prefix) if is_table(self._home, prefix) else None

    def _locate(self, name: str) -> tuple[str, str | None]:
        """Return the full name and path of a member, or the full name of a group and None; KeyError for neither.

        If the handle knows neither, it looks for a new one in the store, and shows it from now on.
        """
        try:
            name = check_name(name)
        except ValueError as error:
            raise KeyError(str(error)) from None
        full = self._full_name(name)
        members = self._members()
        is_newer = False
        if full not in members and not members.is_group(full):
            # A handle that follows other writers has just listed the members.
            home = self._home
            is_newer = not self._follow and isinstance(home, GroupHome) and home.look_for(full)
            members = self._home.members()
        if full in members:
            return full, members[full]
        if members.is_group(full):
            return full, None
        if is_newer:
            raise KeyError(
                f"{name!r}: {self.url} has this member now, but more has changed since this handle opened the group;"
                " refresh() shows all of it"
            )
        raise KeyError(f"{name!r}: {self.url} has no such member{nearest(name, self._list_names())}")

    def read_many(self, selections: Mapping[str, Any]) -> dict[str, Any]:
        """Read selections of several members at once, as `b2array.read_many` does.

        Parameters
        ----------
        selections : mapping of str to key
            The key to read from each array, by the name of the array.

        Returns
        -------
        dict
            The selected items, by the name of the array.

        Examples
        --------
        >>> group = open_group("memory://many.b2d", "w")
        >>> group["x"], group["y"] = [1, 2, 3], [4, 5, 6]
        >>> {name: values.tolist() for name, values in group.read_many({"y": 1, "x": slice(1, 3)}).items()}
        {'y': 5, 'x': [2, 3]}
        """
        names = [*selections]
        if names:
            # List the members here, so that each thread does not list them again.
            self._members()
        arrays = threads.ahead(self.__getitem__, names, min(len(names), _OPENED_AT_ONCE))
        requests = [(array, selections[name]) for name, array in zip(names, arrays, strict=True)]
        results = read_many(requests)
        return dict(zip(names, results, strict=True))

    def __contains__(self, name: object) -> bool:
        """Return whether an array or a group has this name; False for a frame of attributes."""
        name = name.removeprefix("/") if isinstance(name, str) else ""
        if not name or is_attrs(name):
            return False
        full = self._prefix + name
        members = self._members()
        return full in members or members.is_group(full)

    def __array__(self, *_: object, **__: object) -> NoReturn:
        # Without this method, NumPy would make an array of the names.
        raise TypeError(f"{self.url} is a group, not an array; its method copy copies members")

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the arrays and groups directly in this group."""
        return self._members().children(self.name)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def arrays(self) -> dict[str, Any]:
        """Return the arrays (and super-chunks) directly in this group, in a dictionary by name.

        A loop over the dictionary yields names; ``group.arrays().items()`` yields pairs of name and array, like the
        method of zarr. In a remote store, an array that the manifest describes is not read until its items are needed.
        """

        def look() -> dict[str, Any]:
            """List the members, and open those directly in the group."""
            return {name: self._open_path(path, lazy=True) for name, path in self._paths_here().items()}

        return self._with_retries(look)

    def _arrays_to_read(self) -> dict[str, Any]:
        """Return the arrays like `arrays`, but read-only. Opening them is not part of a transaction under way."""
        return {name: _open_member(self._home, path, "r", lazy=True) for name, path in self._paths_here().items()}

    def _paths_here(self) -> dict[str, str]:
        """Return the paths of the members directly in this group, by their names in it."""
        members = self._members()
        paths = {name: members.get(self._prefix + name) for name in self}
        return {name: path for name, path in paths.items() if path}

    def groups(self) -> dict[str, Group]:
        """Return the groups directly in this one, in a dictionary by name, without the tables of python-blosc2.

        This reads the descriptions of the tables, because it tells tables from groups by them.
        """
        members = self._members()
        inner = [name for name in self if self._prefix + name not in members]
        return {name: self._subgroup(name) for name in inner if not is_table(self._home, f"{self._prefix}{name}/")}

    def walk(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the member for everything in and below this group; a group precedes its members.

        Warns
        -----
        UserWarning
            A member cannot be opened; `walk` skips it.

        Raises
        ------
        ConflictError
            Another writer has changed or deleted a member since the group was listed; see `refresh`.
        """
        for name in self:
            # A damaged member must not hide the others, so warn and go on.
            try:
                member = self[name]
            except ConflictError:
                # The member may be in order.
                raise
            except (B2ArrayError, OSError, KeyError) as error:
                warn(f"{self.url}: walk() leaves out {name!r}: {error}")
                continue
            yield name, member
            if isinstance(member, Group):
                for inner, each in member.walk():
                    yield f"{name}/{inner}", each

    def tree(self) -> Names:
        """Return a drawing of the members and groups as text, without opening them. Notebooks can fold the groups.

        Examples
        --------
        >>> group = open_group("memory://tree.b2d", "w")
        >>> group["a/x"] = group["b"] = [1]
        >>> group.tree()
        /
        ├── a
        │   └── x
        └── b
        """
        return Names.of(self, self._list_names())

    def to_xarray(self, **options: Any) -> xr.Dataset:
        """Return the arrays directly in the group as a lazy dataset of xarray.

        ``xarray.open_datatree(group, engine="b2array")`` also returns the groups below it.

        Parameters
        ----------
        **options
            Options of `xarray.open_dataset`, such as ``chunks={}`` for dask arrays, or ``decode_times=False``.

        Examples
        --------
        >>> group = open_group("memory://shown.b2d", "w")
        >>> _ = group.create("x", data=[10, 20], dims=["x"]), group.create("level", data=[1.5, 2.5], dims=["x"])
        >>> group.to_xarray().level.sel(x=20).item()
        2.5
        """
        return dataset_of(self, options)

    def _home_to_change(self) -> GroupHome | Changes:
        """Return the home if its members can be changed, or raise ReadOnlyError.

        If the handle follows other writers, this also makes the home list the members again.
        """
        home = require_writable(self._home, self._mode, self.url)
        if self._follow and isinstance(home, GroupHome):
            home.refresh()
        return home

    @takes(MemberKeywords)
    def create(
        self,
        name: str,
        shape: Shape | None = None,
        dtype: npt.DTypeLike | None = None,
        *,
        data: Any = None,
        overwrite: bool = False,
        **options: Unpack[MemberKeywords],
    ) -> NDArray:
        """Make an array. `create` and `create_array` are the same.

        Parameters
        ----------
        name : str
            The name of the array; missing groups in it are made as well.
        shape, dtype
            As for `b2array.create`.
        data : array-like, optional
            The items of the array, instead of a shape.
        overwrite : bool, default False
            Whether to replace an existing array.
        chunks, ..., meta
            As for `b2array.create`.

        Raises
        ------
        FileExistsError
            A group has this name, or a member has it and `overwrite` is False.
        ValueError
            The name is not valid, or a part of it names an array.
        TypeError
            There is neither a shape nor data, or there are both.
        """
        home = self._home_to_change()
        name = require_free_name(self, name, overwrite=overwrite)
        if (data is None) == (shape is None):
            what = "neither" if data is None else f"both shape={shape} and data of the shape {np.shape(data)}"
            raise TypeError(f"a new array takes either a shape or data, found {what}")

        def new(url: AnyPlace, *, overwrite: bool, layout: Kind = "auto") -> Draft:
            """Return a draft of the array with its data or its fill value; see `NewFrame`."""
            wanted: MemberKeywords = {"layout": layout, **options}
            settings = ArrayOptions(
                **wanted,
                overwrite=overwrite,
                storage_options=home.storage_options,
            )
            if shape is None:
                return array_copying.holding(data, url, dtype, settings)
            wanted_type = float if dtype is None else dtype
            return drafts.draft_filled(url, shape, wanted_type, settings)

        handle = put_member(home, self._prefix + name, ARRAY, new, overwrite=overwrite)
        return NDArray(handle)

    create_array = renamed(create, "create_array")

    @takes(MemberKeywords)
    def require_array(
        self,
        name: str,
        shape: Shape,
        dtype: npt.DTypeLike = float,
        **options: Unpack[MemberKeywords],
    ) -> NDArray:
        """Return the array with this name, or make it as `create` does.

        Raises
        ------
        TypeError
            The member with this name is not an array, or has another shape or type.
        """
        if name not in self:
            return self.create(name, shape, dtype, **options)
        member = self[name]
        wanted = np.broadcast_shapes(shape), np.dtype(dtype)
        if not isinstance(member, NDArray) or (member.shape, member.dtype) != wanted:
            raise TypeError(f"{self.url}: expected an array {name!r} of {wanted[0]}, {wanted[1]}, found {member!r}")
        return member

    @spell_out()
    def require_group(self, name: str, *, attrs: Mapping[str, Any] | None = None) -> Group:
        """Return the group with this name; make an empty one if it is missing. `create_group` is the same.

        Parameters
        ----------
        name : str
            The name of the group; missing groups in it are made as well.
        attrs : mapping, optional
            Attributes to set in the same commit. The group keeps its other attributes.

        Raises
        ------
        ValueError
            The name is not valid, or a part of it names an array. Nothing was written.
        TypeError
            An attribute cannot be stored. Nothing was written.

        Examples
        --------
        >>> group = open_group("memory://described.b2d", "w")
        >>> group.create_group("run/1", attrs={"grid": "coarse"}).attrs
        {'grid': 'coarse'}
        """
        self._home_to_change()
        # Check the attributes before writing anything: this raises TypeError.
        drafts.encode_metalayers(attrs)
        inner = self._subgroup(check_name(name))
        is_new = not self._members().is_group(inner.name)
        if is_new:
            require_free_name(self, name)
        if attrs:
            inner.attrs.update(attrs)
        elif is_new:
            inner.attrs.require()
        return inner

    @spell_out()
    def create_group(self, name: str, *, attrs: Mapping[str, Any] | None = None) -> Group:
        """Return the group with this name, or make an empty one; set `attrs`. `require_group` is the same."""
        return self.require_group(name, attrs=attrs)

    def __setitem__(self, name: str, value: Any) -> None:
        """Store an array-like under a name, and replace the array that has this name."""
        if value is None:
            raise TypeError(f"None is not an array; del group[{name!r}] removes a member")
        self.create(name, data=value, overwrite=True).close()

    def __delitem__(self, name: str) -> None:
        """Remove an array, or a group and everything below it, in one commit; raise KeyError for a missing one."""
        home, name = self._home_to_change(), name.removeprefix("/")
        doomed = home.members().below(self._prefix + name) if name else {}
        if not doomed:
            raise KeyError(name)
        refuse_parts(home, self._prefix + name)
        with changing(home) as changes:
            if changes is home:
                # Another thread may have changed the members of the transaction meanwhile.
                doomed = home.members().below(self._prefix + name)
                if not doomed:
                    raise KeyError(name)
            changes.remove(doomed)

    def pop(self, name: str, *default: Any) -> Any:
        """Remove an array, and return an in-memory copy of it; return `default` for a missing one.

        The copy has the attributes and snapshots of the array, and its chunks stay compressed. To rename an array or a
        group without a copy in memory, use `move`.

        Raises
        ------
        KeyError
            The group has no such member, and no default was passed.
        ValueError
            The member is a group.
        ConflictError
            Another writer has changed the array meanwhile.

        Examples
        --------
        >>> group = open_group("memory://popped.b2d", "w")
        >>> group["x"] = [1, 2]
        >>> x = group.pop("x")
        >>> x[:].tolist(), list(group)
        ([1, 2], [])
        """
        if len(default) > 1:
            count = 1 + len(default)
            raise TypeError(f"pop() takes a name and at most one default, not {count} arguments")
        try:
            full, path = self._locate(name)
        except KeyError:
            if default:
                return default[0]
            raise
        if path is None:
            raise ValueError(f"{name!r} is a group, which pop() does not remove: move() renames it, del removes it")
        refuse_parts(self._home, full)
        with self._change_members() as changes:
            home = cast(Changes, changes._home)
            handle = home.open(path, "r")
            copy_into = copier_of(handle, {})
            copied = Handle(commit(copy_into(None, overwrite=False)), "r+")
            # An embedded member has no generation to compare.
            states = {} if is_embedded(path) else {path: handle.revision}
            home.remove({full: path}, states)
        return NDArray(copied) if _is_array(path, copied) else SChunk(copied)

    def popitem(self) -> tuple[str, Any]:
        """Remove the first array, and return its name and an in-memory copy of it.

        Raises the errors of `pop`, and KeyError if the group has no array.
        """
        members = self._members()
        name = next((name for name in self if self._full_name(name) in members), None)
        if name is None:
            raise KeyError(f"{self.url} has no array")
        return name, self.pop(name)

    def clear(self) -> None:
        """Remove all arrays and groups in this group, in one commit; the group keeps its attributes."""
        own = self._full_name(ATTRS)
        refuse_parts(self._home, self.name)
        with self._change_members() as changes:
            home = cast(Changes, changes._home)
            members = home.members().below(self.name)
            home.remove({name: path for name, path in members.items() if name != own})
            # Without any member, only a frame of attributes makes a subgroup exist.
            if self._prefix and own not in members:
                changes.attrs.require()

    def copy(
        self,
        source: str,
        into: Group | str | os.PathLike[str],
        name: str | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        fs: AbstractFileSystem | None = None,
    ) -> None:
        """Copy an array, or a group and everything below it, in one commit, without compressing chunks again.

        Each array keeps its own snapshots. Snapshots of the whole group are not copied; `b2array.convert` copies them.

        Parameters
        ----------
        source : str
            The array or group to copy; "/" is this group.
        into : Group, str or os.PathLike
            The destination: this group, another group, or the URL of a group, which is made if it does not exist.
        name : str, optional
            The name in the destination; by default `source`.
        storage_options, fs
            As for `open_group`, if `into` is a URL.

        Raises
        ------
        KeyError
            The group has no such member.
        FileExistsError
            The destination has a member, group or attribute with this name.
        TypeError
            `into` is neither a group nor a URL.

        Examples
        --------
        >>> group = open_group("memory://copied.b2d", "w")
        >>> group["a/x"] = [1, 2]
        >>> group.copy("a", group, "b")
        >>> group["b/x"][:].tolist()
        [1, 2]
        """
        if isinstance(into, os.PathLike) or (isinstance(into, str) and _is_url(into)):
            # Look for the source first: a wrong name must not leave an empty group at the URL.
            if not self._below(source.removeprefix("/")):
                raise KeyError(source)
            with _opened_or_made(into, storage_options, fs) as target:
                self.copy(source, target, name)
            return
        if not isinstance(into, Group):
            raise TypeError(
                f"expected a group to copy into, or its URL, found {into!r}; write group.copy({source!r}, group, name)"
            )
        with into._change_members() as changes:
            self._copy_members(source, changes, name)

    def _copy_members(
        self,
        source: str,
        into: Group,
        name: str | None,
    ) -> dict[str, Handle]:
        """Copy members into a group, which is in a transaction, and return a handle to each source by its path.

        `source` and `name` are as for `copy`. If this group is in a transaction, this notes that the sources were read.
        Raises KeyError if there are no such members, and FileExistsError if the destination has a member or an
        attribute with such a name.
        """
        start = source.removeprefix("/")
        chosen = self._below(start)
        if not chosen:
            raise KeyError(source)
        target = require_free_name(into, name or start) if name or start else ""
        sources: dict[str, Handle] = {}
        for other, path in chosen.items():
            rest = other[len(start) :].removeprefix("/")
            full = "/".join(filter(None, (into.name, target, rest)))
            handle = self._home.open(path, "r")
            if isinstance(self._home, Changes):
                self._home.note_read(path)
            _add_copy(into, full, handle)
            sources[path] = handle
        return sources

    def move(self, source: str, name: str) -> None:
        """Rename an array or a group in this group, in one commit.

        Raises the errors of `copy`, and ValueError for a group that would be moved into itself, and in a fork.
        """
        if f"{check_name(name)}/".startswith(f"{check_name(source)}/"):
            raise ValueError(f"{source!r} cannot be moved into itself, to {name!r}")
        if isinstance(self._home, GroupFork):
            raise ValueError("a fork of a group cannot move members: move them before you fork")  # noqa: TRY004
        refuse_parts(self._home, self._full_name(check_name(source)))
        with self._change_members() as changes:
            home = cast(Changes, changes._home)
            sources = changes._copy_members(source, changes, name)
            states = {path: handle.revision for path, handle in sources.items() if not is_embedded(path)}
            old = changes._full_name(source.removeprefix("/"))
            home.remove(home.members().below(old), states)

    @contextmanager
    def _change_members(self) -> Iterator[Group]:
        """Yield the group for changes in the block: commit them together, or leave them to the transaction under way.

        Unlike `transaction`, this does not list all members again, and does not note what the block only reads.
        """
        with changing(self._home_to_change()) as changes:
            yield Group(changes, self._prefix, self._mode)

    def transaction(self, *, replace: bool = False) -> AbstractContextManager[Group]:
        """Commit all changes of a ``with`` block together.

        The block gets a group. The commit has all changes made through this group, and through arrays opened from it;
        other handles do not show the changes before the commit. If the block raises an exception, nothing changes.
        Readers that open members through one group handle see all of the commit or nothing of it. Readers that open a
        member directly, by its own URL or with python-blosc2, may see its changes before or after the changes of other
        members.

        Parameters
        ----------
        replace : bool, default False
            Whether the block starts with a group without members and attributes. The commit deletes the old members;
            until then, handles that were opened before can read them.

        Raises
        ------
        ValueError
            A transaction is already under way; or the block replaces a member without deleting it first.
        ConflictError
            Another writer changed something that the block has read or written. Nothing was committed. A member that
            the block opened without changing it counts as read completely.

        Examples
        --------
        >>> group = open_group("memory://growing.b2d", "w")
        >>> time, level = group.create("time", 0, "i8"), group.create("level", 0, "f4")
        >>> with group.transaction() as changes:
        ...     changes["time"].attrs["unit"] = "s"
        ...     changes["level"].attrs["unit"] = "m"
        >>> group["level"].attrs
        {'unit': 'm'}
        """
        return Block(f"a transaction of {self.url}", self._run_transaction(replace=replace))

    @contextmanager
    def _run_transaction(self, *, replace: bool) -> Iterator[Group]:
        """Yield the group in a new transaction, for `transaction`, which adds a message for users who forget ``with``.

        Commits at the end of the block, and aborts if it raises. Raises ValueError inside another transaction.
        """
        home = self._home_to_change()
        if isinstance(home, Changes):
            raise ValueError("a transaction is under way on this group already")  # noqa: TRY004 - not the user's type
        prefix = self._prefix if replace else None
        changes = begin(home, prefix)
        try:
            yield Group(changes, self._prefix, self._mode)
        except BaseException:
            changes.abort()
            raise
        changes.commit()

    def fork(self) -> Group:
        """Return a handle for a worker, whose changes can become part of the transaction under way.

        A fork can be pickled and sent to threads, processes and other machines. It shows the group as the transaction
        shows it now, plus its own changes, which no other fork sees. When the worker has finished, pass the fork to
        `merge`. One fork may serve many workers: each unpickled copy collects its own changes. A fork can be forked.

        A fork writes items of arrays, makes members and sets attributes. It cannot delete, move or replace members, or
        change shapes. The members that a fork makes stay in memory and in its pickle, so make large arrays in the
        transaction. Forking prepares every member, which takes time in a large group: fork a group inside it, or single
        arrays.

        Raises
        ------
        ValueError
            No transaction is under way.

        Examples
        --------
        >>> import pickle
        >>> group = open_group("memory://forked.b2d", "w")
        >>> level = group.create("level", (4, 6), "i4", chunks=(1, 6))
        >>> with group.transaction() as changes:
        ...     worker = pickle.loads(pickle.dumps(changes.fork()))
        ...     worker["level"][2] = 7
        ...     worker["mean"] = [7.0]
        ...     changes.merge(worker)
        >>> group["level"][:, 0].tolist(), group["mean"][:].tolist()
        ([0, 0, 7, 0], [7.0])
        """
        home = self._home
        if not isinstance(home, Changes):
            raise ValueError("fork() needs a transaction: with group.transaction() as changes: fork = changes.fork()")  # noqa: TRY004
        return Group(home.fork(self._prefix), self._prefix, "r+")

    def merge(self, *workers: Group) -> None:
        """Add the changes of forks to this transaction, or to this fork.

        A fork can merge its own forks and its siblings, which are forks of the same state of the transaction. Workers
        can thus merge in a tree, and the transaction merges a single fork.

        Two forks may write equal bytes to one chunk, or make equal members, for example because a task ran twice. A
        merged fork cannot be used again.

        Parameters
        ----------
        *workers : Group
            Forks of this group, or copies of forks that other processes have sent back.

        Raises
        ------
        ConflictError
            Two forks wrote different items to one chunk, or made different members with one name; or the transaction
            has changed the same chunk or member, or has ended; or siblings wrote to a chunk or member that the
            transaction changed between their forks. Nothing was merged.
        ValueError
            A fork would be merged into itself, or was merged before.
        TypeError
            One of the workers is not a fork.
        """
        home = self._home
        if not isinstance(home, Changes):
            raise ConflictError(f"{self.url}: the transaction of these forks has ended")
        home.merge([_home_of(worker) for worker in workers])

    def snapshot(
        self,
        name: str,
        message: str = "",
        attrs: Mapping[str, Any] | None = None,
        *,
        replace: bool = False,
    ) -> None:
        """Keep the state of all members and attributes under a name; in a transaction, the state at its end.

        A snapshot stores an index for each member, and no chunks. ``open_group(url, at=name)`` opens the snapshot, and
        ``b2array.open(url_of_a_member, at=name)`` opens one member of it. You can delete or replace members afterwards:
        the commit first copies the states that snapshots need. Members inside ``embed.b2e`` move to separate files,
        because embedded members cannot keep old states.

        Parameters
        ----------
        name : str
            The name of the snapshot, at most 255 bytes.
        message : str, optional
            A remark.
        attrs : mapping, optional
            Other metadata of the snapshot, of the same types as attributes of arrays.
        replace : bool, default False
            Whether to replace an existing snapshot of this name.

        Raises
        ------
        FileExistsError
            The group has a snapshot of this name.
        ValueError
            This group is inside another group, whose snapshots include it.
        UnsupportedError
            The group is in an archive.

        Examples
        --------
        >>> group = open_group("memory://nightly.b2d", "w")
        >>> group["level"], group["rain"] = [1, 2], [0, 0]
        >>> group.snapshot("good", "before the night")
        >>> group["level"][:] = 7
        >>> del group["rain"]
        >>> then = open_group("memory://nightly.b2d", at="good")
        >>> then["level"][:].tolist(), then["rain"][:].tolist()
        ([1, 2], [0, 0])
        >>> group.restore("good")
        >>> group["level"][:].tolist(), sorted(group)
        ([1, 2], ['level', 'rain'])
        """
        entry = make_entry(name, message, attrs)
        home = self._home_for_snapshots()
        if isinstance(home, Transaction):
            home.view.require_ledger()
            with home.undivided.held:
                home.snapshots.make(entry, replace=replace)
            return
        for attempt in attempts(home.store):
            try:
                with self.transaction() as changes:
                    changes.snapshot(name, message, attrs, replace=replace)
            except ConflictError:
                # Another writer has made or deleted a member meanwhile: take the snapshot of the newer state.
                if attempt >= config.retries:
                    raise
            else:
                return

    def _home_for_snapshots(self) -> GroupHome | Transaction:
        """Return the home of the group if its snapshots can change.

        Raises ReadOnlyError for a read-only group, and ValueError for a subgroup or a fork.
        """
        home = self._require_outermost(self._home_to_change())
        if not isinstance(home, GroupHome | Transaction):
            raise ValueError("a fork cannot make, drop or restore snapshots: use the transaction")  # noqa: TRY004
        return home

    @contextmanager
    def _change_snapshots(self) -> Iterator[Transaction]:
        """Yield the transaction under way; without one, begin a transaction, and commit it after the block.

        Raises the errors of `_home_for_snapshots`.
        """
        home = self._home_for_snapshots()
        if isinstance(home, Transaction):
            with home.undivided.held:
                yield home
        else:
            with self.transaction() as changes:
                yield cast(Transaction, changes._home)

    def _require_outermost(self, home: H) -> H:
        """Return the home; raise ValueError for a subgroup, because only the outermost group has snapshots."""
        if self._prefix:
            raise ValueError(
                f"{self.url} is inside the group {self._home.url}, which has the snapshots: use "
                f"b2array.open_group({printable(self._home.url)!r})"
            )
        return home

    def _home_with_snapshots(self) -> GroupHome | None:
        """Return a home of the group whose manifest lists the snapshots; None for an archive, which has no such list.

        It can list the members again without an effect on this handle. Raises ValueError for a subgroup, and inside a
        transaction.
        """
        home = self._require_outermost(self._home)
        if isinstance(home, SnapshotHome):
            return home.group
        if isinstance(home, Changes):
            raise ValueError("a transaction is under way on this group: list its snapshots after the transaction")  # noqa: TRY004
        return home.copy() if isinstance(home, GroupHome) else None

    @property
    def snapshots(self) -> tuple[SnapshotInfo, ...]:
        """The snapshots, the oldest first. This reads the indexes of all members, to count each snapshot's bytes."""
        group = self._home_with_snapshots()
        return SnapshotTable() if group is None else snapshot_list.list_snapshots(group)

    def restore(self, name: str) -> None:
        """Restore members, groups and attributes from a snapshot, in one commit.

        The commit deletes members made after the snapshot. A member that was deleted, moved or replaced since the
        snapshot is made again, and replaces the member that has its name now. All snapshots of the group remain. The
        own snapshots of deleted and replaced members go with them; other members keep theirs.

        Raises
        ------
        KeyError
            The group has no snapshot with this name.
        ValueError
            This group is inside another group, whose snapshots include it.
        """
        with self._change_snapshots() as changes:
            snapshot_writing.restore(changes, changes.change, name)

    def drop_snapshot(self, name: str) -> None:
        """Drop a snapshot, in one commit. `b2array.vacuum` or `b2array.repack` then free the bytes only it needed.

        Raises
        ------
        KeyError
            The group has no snapshot with this name.
        ValueError
            This group is inside another group, whose snapshots include it.
        """
        with self._change_snapshots() as changes:
            changes.snapshots.drop([name])

    def diff(self, at: str, then: str | None = None) -> GroupDiff:
        """Return how the group differs from a snapshot, by its indexes and attributes. No items are read.

        Parameters
        ----------
        at : str
            The name of a snapshot.
        then : str, optional
            The name of a second snapshot to compare with the first; by default the present state of the group.

        Raises
        ------
        KeyError
            The group has no such snapshot.
        ValueError
            This group is inside another group, or in a transaction.

        Examples
        --------
        >>> group = open_group("memory://compared.b2d", "w")
        >>> group["a"], group["b"] = [1, 2], [3, 4]
        >>> group.snapshot("start")
        >>> group["a"][0] = 7
        >>> group["c"] = [5]
        >>> group.diff("start")
        made     c
        changed  a  [0:2]
        """
        group = self._home_with_snapshots()
        if group is None:
            raise _make_snapshot_error(self.url, at)
        return snapshot_list.diff_group(group, at, then)

    def consolidate(self) -> None:
        """Write summaries of all members into the manifest, so that readers open members with fewer requests.

        A transaction summarizes the members that it changes. Call this method after other software has made members, or
        after members were changed by their own URLs. See :ref:`summaries`.

        Examples
        --------
        >>> open_group("memory://consolidated.b2d", "w").consolidate()
        """
        whole.consolidate(self._home_to_change())

    def refresh(self) -> None:
        """Show the changes that other writers have made to the group. Arrays that are already open do not change."""
        self._home.refresh()

    def close(self) -> None:
        """Close files. The handle opens them again when it needs them.

        For a ``.b2z`` file that was opened for changes, this writes the new file. The group then shows the new file,
        read-only, and arrays opened from the group before can no longer be used. If writing fails, the old file is
        unchanged.
        """
        home = self._home
        if isinstance(home, GroupHome) and not self._prefix:
            home.close()
        elif not isinstance(home, Changes):
            home.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _: object,
    ) -> None:
        """Close the group; after an error, leave an archive as it was.

        The changes of the archive then stay in its directory, as a note on the error says.
        """
        if error is not None and isinstance(self._home, unpacked.Unpacked) and not self._prefix:
            note = self._home.leave()
            if note:
                error.add_note(note)
        else:
            self.close()

    __eq__, __hash__ = object.__eq__, object.__hash__

    def __copy__(self) -> Group:
        return self._with_prefix(self._prefix)

    def __deepcopy__(self, _: object) -> NoReturn:
        # A deep copy must be independent, but a second handle would change the same files.
        raise TypeError(f"{self!r} cannot be copied: b2array.convert copies a group to another place")

    def __repr__(self) -> str:
        count = count_text(len(self), "member")
        return f"<b2array.Group {printable(self.url)}: {count}{self._remark()}>"

    def _remark(self) -> str:
        """Return the end of the repr: that a transaction is under way, or which snapshot this is; otherwise ""."""
        if isinstance(self._home, Changes):
            return ", in a transaction"
        if isinstance(self._home, SnapshotHome):
            return f", at the snapshot {printable(repr(self._home.name))}"
        return ""

    @property
    def info(self) -> Tree:
        """The members and groups as a tree; with shapes, types and sizes, if there are no more than 100 members.

        For a group on a server, the last line names the cache on disk that is used (`b2array.config.disk_cache`).
        """
        open_path = partial(_open_member, self._home, mode="r", lazy=True)
        return Tree(self, self._list_names(), self._below(), open_path)

    def _repr_html_(self) -> str:
        return self.info._repr_html_()

    def _disk_cache(self) -> str | None:
        """Return the directory of the cache on disk for this group; None without one."""
        return self._home.store.disk_cache

    _ipython_key_completions_ = MutableMapping.keys


def _is_url(text: str) -> bool:
    """Return whether `into` of `Group.copy` looks like a URL; users of h5py may pass the new name there instead."""
    return "://" in text or text.rstrip("/").endswith((".b2d", ".b2z"))


def _home_of(worker: object) -> object:
    """Return the home of a group; return anything else unchanged, so that `Changes.merge` refuses it."""
    return worker._home if isinstance(worker, Group) else worker


def require_free_name(group: Group, name: str, *, overwrite: bool | None = None) -> str:
    """Return the checked name of a new member of a group, without a leading slash; FileExistsError if it is not free.

    Raises ValueError for an invalid name, or one with a part that names an array, and ReadOnlyError inside a table.
    With `overwrite`, an existing member may have the name. None means that the user's function has no such argument, so
    the error does not mention it.
    """
    name = check_new_name(name)
    members = group._home.members()
    full = group._prefix + name
    if not overwrite and full in members:
        hint = "" if overwrite is None else "; overwrite=True replaces it"
        raise FileExistsError(f"{group.url}: there is a member {name!r}{hint}")
    refuse_parts(group._home, full)
    check_new(full, members, group._home.url)
    return name


def _add_copy(group: Group, full: str, handle: Handle) -> None:
    """Add a copy of a frame to a group, in a transaction, under a full name.

    If the frame has the attributes of a group that exists, add them to its attributes. Raises FileExistsError if the
    group has a member or an attribute with this name.
    """
    home = group._home_to_change()
    if full not in home.members():
        suffix = ARRAY if is_typed_array(handle.frame.metalayers) else OTHER
        new = copier_of(handle, home.storage_options)
        put_member(home, full, suffix, new, overwrite=False)
    elif is_attrs(full):
        group.attrs.add(Attributes(handle))
    else:
        raise FileExistsError(f"{home.url}: there is a member {full!r}")


def put_member(
    home: GroupHome | Changes,
    full: str,
    suffix: str,
    new: NewFrame,
    *,
    overwrite: bool,
) -> Handle:
    """Make a member with the draft from `new`, in one commit or in the transaction under way; return its handle.

    `full` is its name in the outermost group. `overwrite` replaces the member with this name. Raises FileExistsError if
    there is one, and `overwrite` is False. A transaction under way replaces no members, and raises ValueError instead.
    """
    if isinstance(home, Changes):
        # One step, so that threads can make several members at the same time.
        return home.create(full, suffix, new, overwrite=overwrite)
    with committing(home) as changes:
        old = home.members().get(full)
        if old is not None:
            # Another writer may have made the member since the caller looked.
            if not overwrite:
                raise FileExistsError(f"{home.url}: there is a member {full!r}; overwrite=True replaces it")
            changes.remove({full: old})
        return changes.create(full, suffix, new, overwrite=overwrite)


def _open_member(
    home: Home,
    path: str,
    mode: Mode,
    *,
    lazy: bool = False,
) -> NDArray | SChunk | Items:
    """Open a member by its path, and return it as an array, as objects of python-blosc2, or as a super-chunk."""
    handle = home.open(path, mode, lazy=lazy)
    # Objects of python-blosc2 are super-chunks with a mark; arrays cannot have it.
    if _is_array(path, handle):
        return NDArray(handle)
    return Items(handle) if holds_items(handle.described.state.frame) else SChunk(handle)


def _is_array(path: str, handle: Handle) -> bool:
    """Return whether a member is an array, by the ending of its path or by its metalayers."""
    return path.endswith(ARRAY) or is_typed_array(handle.described.state.frame.metalayers)
