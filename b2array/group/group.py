"""Groups: directories, prefixes and archives of arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, TypeVar, Unpack, cast, get_args

import numpy as np
import numpy.typing as npt

from b2array import config, threads
from b2array.accessors import dataset_of
from b2array.array import copying, drafts
from b2array.array.array import NDArray
from b2array.array.described import Attributes
from b2array.array.drafts import AnyPlace, ArrayOptions, Kind, MemberKeywords, Shape, takes
from b2array.array.many import read_many
from b2array.array.objects import Items, holds_items
from b2array.array.schunk import SChunk
from b2array.array.snapshots import SnapshotInfo, make_entry
from b2array.array.times import At, name_of
from b2array.commit.cursor import Following
from b2array.commit.draft import Draft
from b2array.commit.handle import Handle, Mode
from b2array.commit.one import commit
from b2array.display.tables import Block, count_text
from b2array.errors import B2ArrayError, ConflictError, ReadOnlyError, warn
from b2array.format.foreign import check_ending
from b2array.frame.listing import group_ledger
from b2array.frame.manifest import ARRAY, ATTRS, OTHER, Manifest, check_name, is_attrs, is_embedded
from b2array.frame.places import group_of
from b2array.group import embedded, snapshots, unpacked, whole
from b2array.group.archive import Archive
from b2array.group.attributes import Attrs, Home, writable
from b2array.group.changing import AnyTransaction, begin, changing
from b2array.group.embedded import EMBED_SUFFIX, EmbedFile
from b2array.group.fork import Changes, GroupFork
from b2array.group.kept import Moment, moment
from b2array.group.listed import AnyGroup, group_at
from b2array.group.local import NewFrame, copy_of
from b2array.group.members import Members, check_new
from b2array.group.restoring import restore
from b2array.group.snapshots import GroupDiff
from b2array.group.tables import Table, is_table
from b2array.group.tree import Names, Tree
from b2array.keywords import refuse_calls, spell_out
from b2array.printable import printable
from b2array.store.base import attempts
from b2array.store.open import address_of, cut, open_store
from b2array.store.open_file import BinaryFile, is_open_file

if TYPE_CHECKING:
    import xarray as xr
    from fsspec import AbstractFileSystem

__all__ = ["AnyMode", "Group", "check_mode", "free_name", "open_group", "put_member"]

AnyMode = Literal["r", "r+", "a", "w", "w-", "x"]
MODES: Final = get_args(AnyMode)

_OPENED_AT_ONCE = 16
H = TypeVar("H")

_NEIGHBOURS: Final = {
    **dict.fromkeys(
        ("array", "create_dataset", "empty", "full", "ones", "zeros"),
        ": group.create(name, shape, dtype) makes an array, group[name] = values stores one",
    ),
    **dict.fromkeys(("require", "require_dataset"), ": see require_array and require_group"),
    **dict.fromkeys(("rename", "rename_group"), ": group.move(old, new) gives a member another name"),
    "update_attributes": ": group.attrs.update(...) sets attributes in one commit",
    **dict.fromkeys(("array_keys",), ": group.arrays() is a dictionary, see its keys"),
    **dict.fromkeys(("group_keys",), ": group.groups() is a dictionary, see its keys"),
    **dict.fromkeys(("visit", "visititems", "members"), ": group.walk() yields names and members"),
}
"""What other libraries' groups have, and what to write instead."""

refuse_calls("b2array.group", "b2array.open_group(url, 'w') makes a group, b2array.open_group(url) opens one")


@spell_out()
def open_group(  # noqa: PLR0911 - there are many kinds of places
    url: str | os.PathLike[str] | BinaryFile,
    mode: AnyMode = "r",
    *,
    follow: bool = False,
    at: At = None,
    resume: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> Group:
    """Open a group of arrays, or make one.

    A local ``.b2z`` file is a whole group. To make or change one, use it in a ``with`` statement, or call
    `Group.close`: until then the members are in a directory next to it, ``.b2work``. `Group.close` packs them into a
    new file, which replaces the old one in one step. Readers find the old file until then. One writer at a time can
    change it.

    Parameters
    ----------
    url : str, os.PathLike or binary file
        A directory, a prefix that fsspec understands, or a ``.b2z`` file, which python-blosc2 reads and writes as well;
        also one that is open, or that ``fsspec.open`` returns. Whoever opens a part of a group to change it gets the
        part as ``group["part"]`` gives it.
    mode : {"r", "r+", "a", "w", "w-", "x"}
        "r": read; "r+": read and change; "a": the same, and make the group if there is none; "w": make an empty group,
        which replaces one that is there; "w-" and "x": make a group where there is none.
    follow : bool, default False
        Whether the group, and arrays taken from it, show what others commit, without `refresh`. Then each use of them
        looks at the store first.
    at : str, datetime.datetime or datetime.date, optional
        The name of a snapshot, which can only be read, or a moment, as for `open`; see `Group.snapshot`.
    resume : bool, optional
        For ``.b2z`` files: whether to continue with what a writer has left that was killed or failed, or to remove it.
        Without it, finding something is an error; mode "w" removes it.
    storage_options : mapping, optional
        For fsspec.
    fs : fsspec.AbstractFileSystem, optional
        A file system, in which the URL is a path.

    Raises
    ------
    FileNotFoundError
        There is no group.
    FileExistsError
        There is something already; with "w", something that is not known to be a group.
    KeyError
        There is no such snapshot.
    FormatError
        The URL is that of a file which is not an archive.
    ReadOnlyError
        Archives on other computers and some protocols can only be read.
    ConflictError
        A writer of the ``.b2z`` file is at work, did not finish, or somebody has replaced the file since.

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
    name = name_of(at, lambda: open_group(url, storage_options=storage_options, fs=fs))
    if is_open_file(url):
        open_store(url, storage_options=storage_options, fs=fs)  # refuses options
        return _in_file(url, mode, follow=follow, at=name)
    url, storage_options = address_of(cast(str | os.PathLike[str], url), storage_options, fs)
    address, options = os.fspath(url), storage_options or {}
    if name is not None:
        return _at_snapshot(address, options, name)
    if mode != "r" and unpacked.is_place(address, options):
        return Group(unpacked.unpacked(address, options, mode, resume=resume), "", "r+", follow=follow)
    if address.endswith(EMBED_SUFFIX) and embedded.is_store(address, options):
        return in_embed_file(address, mode, follow=follow, storage_options=options)
    required = mode in ("r", "r+")
    home = whole.home_of(address, options, required=required)
    if isinstance(home, Archive):
        if mode != "r":
            raise ReadOnlyError(
                f"{home.url} is an archive, which can only be read; a local file that ends with .b2z can be changed"
            )
        return Group(home, "", mode, follow=follow)
    found = None if mode == "r" else whole.around(home)
    if found is not None:
        outer, part = found
        return _prepared_part(Group(outer, "", "r+", follow=follow), part, mode)
    _prepare(home, mode, required=required)
    return Group(home, "", "r" if mode == "r" else "r+", follow=follow)


def in_embed_file(address: str, mode: AnyMode, *, follow: bool, storage_options: Mapping[str, Any]) -> Group:
    """Open an embedding store of python-blosc2."""
    home = EmbedFile(address, storage_options)
    if mode != "r":
        raise ReadOnlyError(
            f"{home.url} is an embedding store of python-blosc2, which can only be read; copy its members to a group"
        )
    return Group(home, "", mode, follow=follow)


def check_mode(mode: str, at: object, *, follow: bool) -> None:
    """Raise ValueError for a mode that there is not, or that does not go with a snapshot."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}, not {mode!r}")
    if at is not None and (mode != "r" or follow):
        raise ValueError(f"a snapshot is opened for reading, and never changes: at={at!r} goes with mode 'r' alone")


def _prepare(home: AnyGroup, mode: AnyMode, *, required: bool) -> None:
    """Make a group, or make it empty or complete, as the mode says."""
    there = required or whole.exists(home)
    if mode in ("w", "w-", "x") or not there:
        check_ending(cut(home.store.url)[1], home.store.url, group=True)
    if mode in ("w-", "x") and there:
        raise FileExistsError(f"{home.store.url} exists; mode='w' replaces a group")
    if not there:
        whole.initialise(home)
    elif mode == "w":
        whole.clear(home)
    elif mode == "a":
        whole.complete(home)
    if mode != "r":
        home.recover()


def _prepared_part(outer: Group, name: str, mode: AnyMode) -> Group:
    """Make a group in another one, or make it empty or complete, as the mode says."""
    home = cast(AnyGroup, outer._home)
    home.recover()
    part = outer._inner(name)
    if not home.members().is_group(name):
        if mode in ("w", "w-", "x"):
            check_ending(name, part.url, group=True)
        return part if mode == "r+" else outer.require_group(name)
    if mode in ("w-", "x"):
        raise FileExistsError(f"{part.url} exists; mode='w' replaces a group")
    if mode == "w":
        with part.transaction(replace=True) as changes:
            changes.attrs.require()
    return part


def _at_snapshot(address: str, options: Mapping[str, Any], at: str) -> Group:
    """Open a group, or a group in another one, as it was."""
    here, manifest = group_at(address, options), Manifest()
    with suppress(OSError, B2ArrayError):  # below it turns out what else may be there
        manifest = here.stored()
    if group_ledger(here.url, manifest).find(at) is not None:
        return Group(moment(here, at, manifest), "", "r")
    place = group_of(address, options)
    home = whole.home_of(address if place is None else place.group, options)
    prefix = f"{place.name}/" if place is not None and place.name else ""
    if isinstance(home, Archive):
        raise _no_snapshot(home.url, at)
    then = moment(home, at)
    if not then.members().is_group(prefix.rstrip("/")):
        raise FileNotFoundError(f"{home.url} had no group {prefix.rstrip('/')!r} at the snapshot {at!r}")
    return Group(then, prefix, "r")


def _no_snapshot(url: str, at: str) -> KeyError:
    return KeyError(f"{url} has no snapshot {at!r}; archives have none of the whole group, only of single arrays")


def _in_file(file: BinaryFile, mode: AnyMode, *, follow: bool, at: str | None) -> Group:
    if mode != "r":
        raise ReadOnlyError(f"{type(file).__name__}: an open file can only be read; to change it, open it by its name")
    home = whole.home_in_file(file)
    if at is not None:
        raise _no_snapshot(home.url, at)
    return Group(home, "", mode, follow=follow)


class Group(MutableMapping[str, Any]):
    """Named arrays and groups.

    Made by `open_group`. A mapping that lists what is directly in the group. Names with slashes reach further down; a
    slash at the beginning is ignored. A group exists as soon as a member's name begins with its own.

    A handle shows the members that there were when it was first asked for one, and its own changes; `refresh` shows
    those of others. An array is opened in its latest state. For a member that a `transaction` has changed in the
    meantime, it raises `ConflictError`: all that one handle opens belongs together. Threads may share a handle for
    reading.
    """

    __slots__ = ("_follow", "_home", "_mode", "_prefix")

    def __init__(self, home: Home, prefix: str, mode: Mode, *, follow: bool = False) -> None:
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
        """Its name in the outermost group, whose own name is empty."""
        return self._prefix.rstrip("/")

    @property
    def parent(self) -> Group | None:
        """The group that this one is in; None for the outermost one."""
        outer = self.name.rpartition("/")[0]
        return self._at(f"{outer}/" * bool(outer)) if self._prefix else None

    @property
    def mode(self) -> Mode:
        """For reading ("r"), or for reading and changing ("r+")."""
        return self._mode

    @property
    def attrs(self) -> Attrs:
        """The group's attributes, a mapping. Each assignment is a commit."""
        if self._follow:
            self._home.refresh()
        return Attrs(self._home, self._prefix, self._mode)

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            hint = _NEIGHBOURS.get(name, "")
            raise AttributeError(f"'Group' object has no attribute {name!r}{hint}", name=name, obj=self)

    def _members(self) -> Members:
        """Return the members of the outermost group; those that are there now, if the handle follows others."""
        if self._follow:
            self._home.refresh()
        return self._home.members()

    def _full(self, name: str) -> str:
        return f"{self._prefix}{name}".rstrip("/")

    def _below(self, name: str = "") -> dict[str, str]:
        """Return the paths of all members in and below this group, or one in it, by their names in this group."""
        n = len(self._prefix)
        return {full[n:]: path for full, path in self._members().below(self._full(name)).items()}

    def _shown(self) -> Iterator[str]:
        for name in self._below():
            # A frame with attributes is no member, but it makes its group exist.
            yield name.removesuffix(ATTRS).rstrip("/") if is_attrs(name) else name

    def _inner(self, name: str) -> Group:
        return self._at(f"{self._prefix}{name}/")

    def _at(self, prefix: str) -> Group:
        return Group(self._home, prefix, self._mode, follow=self._follow)

    def _opened(self, path: str, *, lazy: bool = False) -> NDArray | SChunk | Items:
        member = _opened(self._home, path, self._mode, lazy=lazy and not self._follow)
        return type(member)(Handle(Following(member._handle.snapshot), self._mode)) if self._follow else member

    def __getitem__(self, name: str) -> Any:
        """Open an array (or a super-chunk), or give a group; a table or objects of python-blosc2 as `Table` or `Items`.

        Raises
        ------
        KeyError
            There is no such member.
        FormatError, UnsupportedError
            The member is damaged, or stored in its archive in a way that cannot be read in place.
        ConflictError
            A transaction changed it after the group was opened.
        """
        full, path = self._found(name)
        if path is not None:
            return self._opened(path)
        return self._table(full) or self._at(f"{full}/")

    def _table(self, full: str) -> Table | None:
        prefix = f"{full}/"
        return Table(self._home, prefix) if is_table(self._home, prefix) else None

    def _found(self, name: str) -> tuple[str, str | None]:
        """Return the full name of a member, and its path, or None for a group; KeyError if there is no such member."""
        try:
            name = check_name(name)
        except ValueError as error:
            raise KeyError(str(error)) from None
        members, full = self._members(), self._full(name)
        if full in members:
            return full, members[full]
        if members.is_group(full):
            return full, None
        raise KeyError(f"{name!r}: {self.url} has no such member")

    def read_many(self, selections: Mapping[str, Any]) -> dict[str, Any]:
        """Read selections of several members at once; `b2array.read_many` says how.

        Parameters
        ----------
        selections : mapping of str to key
            Names of arrays, and what to read of them.

        Returns
        -------
        dict
            The result for each name.

        Examples
        --------
        >>> group = open_group("memory://many.b2d", "w")
        >>> group["x"], group["y"] = [1, 2, 3], [4, 5, 6]
        >>> {name: found.tolist() for name, found in group.read_many({"y": 1, "x": slice(1, 3)}).items()}
        {'y': 5, 'x': [2, 3]}
        """
        names = [*selections]
        if names:
            self._members()  # they are listed once, and not in each thread
        arrays = threads.ahead(self.__getitem__, names, min(len(names), _OPENED_AT_ONCE))
        found = read_many([(array, selections[name]) for name, array in zip(names, arrays, strict=True)])
        return dict(zip(names, found, strict=True))

    def __contains__(self, name: object) -> bool:
        name = name.removeprefix("/") if isinstance(name, str) else ""
        if not name or is_attrs(name):
            return False
        members, full = self._members(), self._prefix + name
        return full in members or members.is_group(full)

    def __array__(self, *_: object, **__: object) -> NoReturn:
        # NumPy would make an array of the names.
        raise TypeError(f"{self.url} is a group, not an array; its method copy copies members")

    def __iter__(self) -> Iterator[str]:
        return self._members().children(self.name)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def arrays(self) -> dict[str, Any]:
        """Open the members that are directly in this group and are not groups, as a dictionary of their names.

        A loop over it gives names, as with any dictionary; ``group.arrays().items()`` gives pairs, as
        zarr's method does. Away from this computer, members that the manifest describes are not read before their items
        are needed.
        """
        return {name: self._opened(path, lazy=True) for name, path in self._paths().items()}

    def _glance(self) -> dict[str, Any]:
        """Do what `arrays` does, for reading. In a transaction, other writers may change them until the commit."""
        return {name: _opened(self._home, path, "r", lazy=True) for name, path in self._paths().items()}

    def _paths(self) -> dict[str, str]:
        members = self._members()
        paths = {name: members.get(self._prefix + name) for name in self}
        return {name: path for name, path in paths.items() if path}

    def groups(self) -> dict[str, Group]:
        """Return the groups that are directly in this one, as a dictionary of their names."""
        members = self._members()
        inner = [name for name in self if self._prefix + name not in members]
        return {name: self._inner(name) for name in inner if not is_table(self._home, f"{self._prefix}{name}/")}

    def walk(self) -> Iterator[tuple[str, Any]]:
        """Yield names and members of everything in and below this group; a group comes before its members.

        Warns
        -----
        UserWarning
            A member cannot be opened, and is skipped.
        """
        for name in self:
            try:
                member = self[name]
            except (B2ArrayError, OSError, KeyError) as error:
                warn(f"{self.url}: walk() leaves out {name!r}: {error}")
                continue
            yield name, member
            if isinstance(member, Group):
                for inner, each in member.walk():
                    yield f"{name}/{inner}", each

    def tree(self) -> Names:
        """Draw the members and groups as text, without opening them. In notebooks the groups fold.

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
        return Names.of(self, self._shown())

    def to_xarray(self, **options: Any) -> xr.Dataset:
        """Return the arrays that are directly in the group as a dataset, which is read when its values are needed.

        ``xarray.open_datatree(group, engine="b2array")`` returns the groups below it, too.

        Parameters
        ----------
        **options
            As for `xarray.open_dataset`: ``chunks={}`` for arrays of dask, ``decode_times=False``, and so on.

        Examples
        --------
        >>> group = open_group("memory://shown.b2d", "w")
        >>> _ = group.create("x", data=[10, 20], dims=["x"]), group.create("level", data=[1.5, 2.5], dims=["x"])
        >>> group.to_xarray().level.sel(x=20).item()
        2.5
        """
        return dataset_of(self, options)

    def _writable(self) -> AnyGroup | Changes:
        home = writable(self._home, self._mode, self.url)
        if self._follow and isinstance(home, AnyGroup):
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
        """Make an array. `create_array` is the same.

        Parameters
        ----------
        name : str
            Missing groups in the name are made as well.
        shape, dtype
            As for `b2array.create`.
        data : array-like, optional
            The array's items, instead of a shape.
        overwrite : bool, default False
            Whether to replace an array that is there.
        chunks, ..., meta
            As for `b2array.create`.

        Raises
        ------
        FileExistsError
            There is a group of that name, or a member that is not to be replaced.
        ValueError
            The name is not valid, or a part of it is an array already.
        """
        home = self._writable()
        name = free_name(self, name, overwrite=overwrite)
        if (data is None) == (shape is None):
            what = "neither" if data is None else f"both shape={shape} and data of the shape {np.shape(data)}"
            raise TypeError(f"create() takes either a shape or data, found {what}")

        def new(url: AnyPlace, *, overwrite: bool, layout: Kind = "auto") -> Draft:
            wanted: MemberKeywords = {"layout": layout, **options}
            given = ArrayOptions(**wanted, overwrite=overwrite, storage_options=home.storage_options)
            if shape is None:
                return copying.holding(data, url, dtype, given)
            return drafts.draft_filled(url, shape, float if dtype is None else dtype, given)

        return NDArray(put_member(home, self._prefix + name, ARRAY, new, overwrite=overwrite))

    create_array = create

    @takes(MemberKeywords)
    def require_array(
        self, name: str, shape: Shape, dtype: npt.DTypeLike = float, **options: Unpack[MemberKeywords]
    ) -> NDArray:
        """Return the array of that name, or make it as `create` does.

        Raises
        ------
        TypeError
            There is something else of that name, or an array of another shape or type.
        """
        if name not in self:
            return self.create(name, shape, dtype, **options)
        found, wanted = self[name], (np.broadcast_shapes(shape), np.dtype(dtype))
        if not isinstance(found, NDArray) or (found.shape, found.dtype) != wanted:
            raise TypeError(f"{self.url}: expected an array {name!r} of {wanted[0]}, {wanted[1]}, found {found!r}")
        return found

    def require_group(self, name: str, *, attrs: Mapping[str, Any] | None = None) -> Group:
        """Return the group of that name; make an empty one if it is missing. `create_group` is the same.

        Parameters
        ----------
        name : str
            Missing groups in the name are made as well.
        attrs : mapping, optional
            Attributes to set, in the same commit. Others that are there stay.

        Raises
        ------
        ValueError, TypeError
            The name is not valid, or a part of it is an array already; an attribute cannot be stored. Nothing was
            written then.

        Examples
        --------
        >>> group = open_group("memory://described.b2d", "w")
        >>> group.create_group("run/1", attrs={"grid": "coarse"}).attrs
        {'grid': 'coarse'}
        """
        self._writable()
        drafts.encode_metalayers(attrs)  # raises TypeError for attributes that cannot be stored
        inner = self._inner(check_name(name))
        is_new = not self._members().is_group(inner.name)
        if is_new:
            free_name(self, name)
        if attrs:
            inner.attrs.update(attrs)
        elif is_new:
            inner.attrs.require()
        return inner

    def create_group(self, name: str, *, attrs: Mapping[str, Any] | None = None) -> Group:
        """Return the group of that name, or make an empty one. `require_group` is the same."""
        return self.require_group(name, attrs=attrs)

    def __setitem__(self, name: str, value: Any) -> None:
        """Store an array-like, and replace the array of that name."""
        if value is None:
            raise TypeError(f"None is no array; del group[{name!r}] removes a member")
        self.create(name, data=value, overwrite=True).close()

    def __delitem__(self, name: str) -> None:
        home, name = self._writable(), name.removeprefix("/")
        doomed = home.members().below(self._prefix + name) if name else {}
        if not doomed:
            raise KeyError(name)
        with changing(home) as changes:
            changes.remove(doomed)

    def pop(self, name: str, *default: Any) -> Any:
        """Remove an array, and return a copy of it in memory; `default` if there is none.

        The copy has the attributes and snapshots. Its chunks stay compressed. `move` gives an array or a group another
        name without any copy in memory.

        Raises
        ------
        KeyError
            There is no such member, and no default.
        ValueError
            It is a group.
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
            raise TypeError(f"pop() takes a name and at most one default, not {1 + len(default)} arguments")
        try:
            full, path = self._found(name)
        except KeyError:
            if default:
                return default[0]
            raise
        if path is None:
            raise ValueError(f"{name!r} is a group, which stays: move() gives it another name, del removes it")
        with self._changing() as changes:
            home = cast(Changes, changes._home)
            held = home.open(path, "r")
            copied = Handle(commit(copy_of(held, {})(None, overwrite=False)), "r+")
            states = {} if is_embedded(path) else {path: held.snapshot.generation}
            home.remove({full: path}, states)
        return NDArray(copied) if _is_array(path, copied) else SChunk(copied)

    def popitem(self) -> tuple[str, Any]:
        """Remove the first array, and return its name and a copy of it in memory. Raises what `pop` raises."""
        members = self._members()
        name = next((name for name in self if self._full(name) in members), None)
        if name is None:
            raise KeyError(f"{self.url} has no array")
        return name, self.pop(name)

    def clear(self) -> None:
        """Remove all arrays and groups in this group, in one commit; the group and its attributes stay."""
        own = self._full(ATTRS)
        with self._changing() as changes:
            home = cast(Changes, changes._home)
            members = home.members().below(self.name)
            home.remove({name: path for name, path in members.items() if name != own})
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
        """Copy an array, or a group with all below it, in one commit. Chunks are copied, not compressed again.

        Arrays keep the snapshots that they have for themselves. Snapshots of the whole group are not copied;
        `b2array.convert` copies a group with them.

        Parameters
        ----------
        source : str
            What to copy; "/" is this group.
        into : Group, str or os.PathLike
            Where to; this group or another one, or the URL of one, which is made if it is not there.
        name : str, optional
            The name there; `source` by default.
        storage_options, fs
            As for `open_group`, for a group that is named by its URL.

        Raises
        ------
        KeyError
            There is no such member.
        FileExistsError
            There is a member, group or attribute of that name already.

        Examples
        --------
        >>> group = open_group("memory://copied.b2d", "w")
        >>> group["a/x"] = [1, 2]
        >>> group.copy("a", group, "b")
        >>> group["b/x"][:].tolist()
        [1, 2]
        """
        if isinstance(into, os.PathLike) or (isinstance(into, str) and _is_url(into)):
            if not self._below(source.removeprefix("/")):
                raise KeyError(source)  # before a group is made for it
            with open_group(into, "a", storage_options=storage_options, fs=fs) as target:
                self.copy(source, target, name)
            return
        if not isinstance(into, Group):
            raise TypeError(
                f"expected a group to copy into, or its URL, found {into!r}; write group.copy({source!r}, group, name)"
            )
        with into._changing() as changes:
            self._copied(source, changes, name)

    def _copied(self, source: str, into: Group, name: str | None) -> dict[str, Handle]:
        """Copy members into a group, and return the handles that were copied, by their paths."""
        start = source.removeprefix("/")
        chosen = self._below(start)
        if not chosen:
            raise KeyError(source)
        target = free_name(into, name or start) if name or start else ""
        copied = {}
        for other, path in chosen.items():
            full = "/".join(filter(None, (into.name, target, other[len(start) :].removeprefix("/"))))
            copied[path] = self._home.open(path, "r")
            if isinstance(self._home, Changes):
                self._home.note_read(path)
            _add_copy(into, full, copied[path])
        return copied

    def move(self, source: str, name: str) -> None:
        """Rename an array or a group in this group, in one commit. Raises what `copy` raises."""
        if f"{check_name(name)}/".startswith(f"{check_name(source)}/"):
            raise ValueError(f"{source!r} cannot be moved into itself, to {name!r}")
        if isinstance(self._home, GroupFork):
            raise ValueError("a fork of a group cannot move members: do that before you fork")  # noqa: TRY004
        with self._changing() as changes:
            home = cast(Changes, changes._home)
            copied = changes._copied(source, changes, name)
            states = {path: held.snapshot.generation for path, held in copied.items() if not is_embedded(path)}
            home.remove(home.members().below(changes._full(source.removeprefix("/"))), states)

    @contextmanager
    def _changing(self) -> Iterator[Group]:
        """Let the block change members, in one commit. Unlike `transaction` this does not list all members again."""
        with changing(self._writable()) as changes:
            yield Group(changes, self._prefix, self._mode)

    def transaction(self, *, replace: bool = False) -> AbstractContextManager[Group]:
        """Make everything that is changed inside the ``with`` block one commit.

        Changes through the group that the block gets, and through arrays taken from it, are part of the commit. Other
        handles show nothing of them before. If the block raises, nothing has happened. Readers who open members through
        one group see all of the commit or nothing of it. Readers who open a member directly, by its own URL or with
        python-blosc2, may see its changes before or after those of other members.

        Parameters
        ----------
        replace : bool, default False
            Whether the block begins with a group without members and attributes. Those that were there are deleted by
            the commit; until then handles that were opened before read them.

        Raises
        ------
        ValueError
            A transaction is under way already; or, in the block, a member that was not deleted is to be replaced.
        ConflictError
            Another writer changed what was read or written in the block. Nothing has happened then. A member that the
            block opened and did not change counts as read, with everything in it.

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
        return Block(f"a transaction of {self.url}", self._begun(replace=replace))

    @contextmanager
    def _begun(self, *, replace: bool) -> Iterator[Group]:
        home = self._writable()
        if isinstance(home, Changes):
            raise ValueError("a transaction is under way on this group already")  # noqa: TRY004 - not the user's type
        changes = begin(home, self._prefix if replace else None)
        try:
            yield Group(changes, self._prefix, self._mode)
        except BaseException:
            changes.abort()
            raise
        changes.commit()

    def fork(self) -> Group:
        """Return a handle for a worker, whose changes can become part of the transaction under way.

        It can be pickled, and goes to threads, processes and other machines. It shows the group as the transaction has
        it now, and its own changes; no other fork sees them. Give it back to `merge` when the worker has finished. One
        fork may serve many workers: each unpickled copy collects its own changes. It can be forked itself.

        A fork writes items of arrays, makes members and sets attributes. It does not delete, move or replace members,
        and does not change shapes. The members that it makes are in memory, and in its pickle: let the transaction make
        large arrays. To prepare all members takes time in a large group: fork a group in it, or single arrays.

        Raises
        ------
        ValueError
            There is no transaction under way.

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
        """Take what was changed through forks into the transaction, or into a fork.

        A fork takes forks of itself, and its siblings: forks of the same transaction that were made when this one was.
        So workers can merge in a tree, and the transaction merges one fork.

        Equal bytes in one chunk, and equal new members, are fine, as of a task that ran twice. A merged fork cannot be
        used any more.

        Parameters
        ----------
        *workers : Group
            Forks of this group, or copies of them that came back from other processes.

        Raises
        ------
        ConflictError
            Two forks have written different items into one chunk, or made different members of one name, or the
            transaction has changed the same since, or has ended. The transaction has changed between siblings what
            these have written. Nothing was taken then.
        ValueError
            A fork is to be merged into itself, or was merged before.
        TypeError
            One of them is no fork.
        """
        home = self._home
        if not isinstance(home, Changes):
            raise ConflictError(f"{self.url}: the transaction of these forks has ended")
        home.merge([_home_of(worker) for worker in workers])

    def snapshot(
        self, name: str, message: str = "", attrs: Mapping[str, Any] | None = None, *, replace: bool = False
    ) -> None:
        """Keep all members and attributes, as they are at one moment, under a name; in a transaction, as that ends.

        A snapshot takes an index for each member, and no chunk. ``open_group(url, at=name)`` opens it, and
        ``b2array.open(url_of_a_member, at=name)`` one member of it. Members may be deleted or replaced afterwards:
        before they go, their states are copied. Members in ``embed.b2e`` get files of their own, because embedded ones
        cannot keep states.

        Parameters
        ----------
        name : str
            At most 255 bytes.
        message : str, optional
            A remark.
        attrs : mapping, optional
            What else is to be known of it, as for attributes of arrays.
        replace : bool, default False
            Whether a snapshot of this name may be replaced.

        Raises
        ------
        FileExistsError
            The group has a snapshot of this name.
        ValueError
            This group is inside another one, whose snapshot has all of it.
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
        home = self._keeper()
        if isinstance(home, AnyTransaction):
            home.snapshots.make(entry, replace=replace)
            return
        for attempt in attempts(home.store):
            try:
                with self.transaction() as changes:
                    changes.snapshot(name, message, attrs, replace=replace)
            except ConflictError:  # another writer has made or deleted a member meanwhile
                if attempt >= config.retries:
                    raise
            else:
                return

    def _keeper(self) -> AnyGroup | AnyTransaction:
        """Return the home of the members if it can keep states; raise ReadOnlyError or ValueError otherwise."""
        home = self._outermost(self._writable())
        if not isinstance(home, AnyGroup | AnyTransaction):
            raise ValueError("a fork cannot make, drop or go back to snapshots: do that in the transaction")  # noqa: TRY004
        return home

    @contextmanager
    def _keeping(self) -> Iterator[AnyTransaction]:
        """Let the block change snapshots: in the transaction under way, or in one of its own."""
        is_under_way = isinstance(self._keeper(), AnyTransaction)
        with nullcontext(self) if is_under_way else self.transaction() as changes:
            yield cast(AnyTransaction, changes._home)

    def _outermost(self, home: H) -> H:
        """Return the home; raise ValueError for an inner group, whose members are part of the outermost one."""
        if self._prefix:
            raise ValueError(
                f"{self.url} is inside the group {self._home.url}, and has no snapshots of its own; "
                f"b2array.open_group({printable(self._home.url)!r}) has those of everything in it"
            )
        return home

    def _directory(self) -> AnyGroup | None:
        """Return the home of the members with its snapshots; None for an archive, which has none."""
        home = self._outermost(self._home)
        if isinstance(home, Moment):
            return home.group
        if isinstance(home, Changes):
            raise ValueError("a transaction is under way on this group: its snapshots are listed when it is over")  # noqa: TRY004
        return None if isinstance(home, Archive | EmbedFile) else home.copy()

    @property
    def snapshots(self) -> tuple[SnapshotInfo, ...]:
        """The snapshots, the oldest first. To see which bytes each holds alone, indexes of all members are read."""
        directory = self._directory()
        return () if directory is None else snapshots.listed(directory)

    def restore(self, name: str) -> None:
        """Go back to a snapshot, in one commit: members, groups, attributes. Later members go. All snapshots stay.

        Raises
        ------
        KeyError
            There is no snapshot of this name.
        """
        with self._keeping() as changes:
            restore(changes, name)

    def drop_snapshot(self, name: str) -> None:
        """Forget a snapshot, in one commit. `b2array.vacuum` or `b2array.repack` then free what it held alone.

        Raises
        ------
        KeyError
            There is no snapshot of this name.
        """
        with self._keeping() as changes:
            changes.snapshots.drop([name])

    def diff(self, at: str, then: str | None = None) -> GroupDiff:
        """Return how the group differs from a snapshot. Indexes and attributes are compared, and no items.

        Parameters
        ----------
        at : str
            A snapshot.
        then : str, optional
            Another one to compare it with; by default the group as it is now.

        Raises
        ------
        KeyError
            There is no such snapshot.

        Examples
        --------
        >>> group = open_group("memory://compared.b2d", "w")
        >>> group["a"], group["b"] = [1, 2], [3, 4]
        >>> group.snapshot("start")
        >>> group["a"][0] = 7
        >>> group["c"] = [5]
        >>> group.diff("start")
        GroupDiff(made=('c',), deleted=(), changed={'a': [(slice(0, 2, None),)]}, attrs=())
        """
        directory = self._directory()
        if directory is None:
            raise _no_snapshot(self.url, at)
        return snapshots.differences(directory, at, then)

    def consolidate(self) -> None:
        """Put summaries of all members into the group's manifest, from where readers take them.

        Transactions do so for the members that they change. This does it for members that other software has made, or
        that somebody changed by their own URL. See :ref:`summaries`.

        Examples
        --------
        >>> open_group("memory://consolidated.b2d", "w").consolidate()
        """
        whole.consolidate(self._writable())

    def refresh(self) -> None:
        """Show what others have done to the group since it was opened. Open arrays stay as they are."""
        self._home.refresh()

    def close(self) -> None:
        """Close files. The handle opens them again when it needs them.

        A ``.b2z`` file that was opened for changes is written now. After that the group shows it, for reading; arrays
        that were taken from the group before are gone. If this fails, the old file is as it was.
        """
        if isinstance(self._home, Changes):
            return
        if self._prefix:
            self._home.store.close()
        else:
            self._home.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is not None and isinstance(self._home, unpacked.Unpacked) and not self._prefix:
            if said := self._home.leave():
                error.add_note(said)
        else:
            self.close()

    __eq__, __hash__ = object.__eq__, object.__hash__

    def __copy__(self) -> Group:
        return self._at(self._prefix)

    def __deepcopy__(self, _: object) -> NoReturn:
        # A second handle would change the same files.
        raise TypeError(f"{self!r} is no value that can be copied: b2array.convert copies a group to another place")

    def __repr__(self) -> str:
        pending = ", in a transaction" * isinstance(self._home, Changes)
        return f"<b2array.Group {printable(self.url)}: {count_text(len(self), 'member')}{pending}>"

    @property
    def info(self) -> Tree:
        """The members and groups as a tree; with shapes, types and sizes, if there are no more than 100."""
        return Tree(self, self._shown(), self._below(), partial(_opened, self._home, mode="r", lazy=True))

    def _repr_html_(self) -> str:
        return self.info._repr_html_()

    _ipython_key_completions_ = MutableMapping.keys


def _is_url(text: str) -> bool:
    """Say whether a text is meant for a place: h5py takes the name of a copy there."""
    return "://" in text or text.rstrip("/").endswith((".b2d", ".b2z"))


def _home_of(worker: object) -> object:
    return worker._home if isinstance(worker, Group) else worker


def free_name(group: Group, name: str, *, overwrite: bool | None = None) -> str:
    """Check and return the name of a new member of a group; None: the caller has no such argument."""
    name, members = check_name(name), group._home.members()
    full = group._prefix + name
    if not overwrite and full in members:
        hint = "" if overwrite is None else "; overwrite=True replaces it"
        raise FileExistsError(f"{group.url}: there is a member {name!r}{hint}")
    check_new(full, members, group._home.url)
    return name


def _add_copy(group: Group, full: str, held: Handle) -> None:
    """Copy a frame; attributes may be added to those that the group has already."""
    home = group._writable()
    if full not in home.members():
        suffix = ARRAY if held.frame.metalayer("b2nd") is not None else OTHER
        put_member(home, full, suffix, copy_of(held, home.storage_options), overwrite=False)
    elif is_attrs(full):
        group.attrs.add(Attributes(held))
    else:
        raise FileExistsError(f"{home.url}: there is a member {full!r}")


def put_member(home: AnyGroup | Changes, full: str, suffix: str, new: NewFrame, *, overwrite: bool) -> Handle:
    """Make a member, in the place of one of that name if there is one and the caller has allowed it."""
    with changing(home) as changes:
        old = home.members().get(full)
        if old is not None and home is not changes:
            if not overwrite:  # another writer has made it since the caller looked
                raise FileExistsError(f"{home.url}: there is a member {full!r}; overwrite=True replaces it")
            changes.remove({full: old})
        return changes.create(full, suffix, new, overwrite=overwrite)


def _opened(home: Home, path: str, mode: Mode, *, lazy: bool = False) -> NDArray | SChunk | Items:
    held = home.open(path, mode, lazy=lazy)
    if not path.endswith(ARRAY) and holds_items(held.described.state.frame):
        return Items(held)
    return NDArray(held) if _is_array(path, held) else SChunk(held)


def _is_array(path: str, held: Handle) -> bool:
    return path.endswith(ARRAY) or held.described.state.frame.metalayer("b2nd") is not None
