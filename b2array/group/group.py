"""Groups: directories, prefixes and archives of arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from html import escape
from typing import Any, Literal

import numpy.typing as npt

from b2array.array import creation
from b2array.array.array import NDArray
from b2array.array.creation import Shape
from b2array.array.opening import create_schunk
from b2array.array.schunk import SChunk
from b2array.engine.attributes import Layers
from b2array.engine.handle import Handle, Mode
from b2array.engine.transaction import Transaction
from b2array.errors import FormatError, ReadOnlyError
from b2array.group.archive import MAGIC, Archive
from b2array.group.directory import Directory
from b2array.group.manifest import ARRAY, ATTRS, check_name
from b2array.group.transaction import Joint
from b2array.store.base import Store

__all__ = ["Group", "open_group"]

_OTHER = ".b2f"
"""Suffix of an array that cannot have the usual one, because another frame has it."""

GroupMode = Literal["r", "r+", "a", "w", "x"]


def open_group(
    url: str | os.PathLike[str], mode: GroupMode = "r", *, storage_options: Mapping[str, Any] | None = None
) -> Group:
    """Open a group of arrays, or make one.

    Parameters
    ----------
    url : str or os.PathLike
        A directory, a prefix that fsspec understands, or a ``.b2z`` file of python-blosc2's.
    mode : {"r", "r+", "a", "w", "x"}
        For reading; for reading and changing; the same, and make the group if there is none; make an empty one in the
        place of one that is there; make one where there is none.
    storage_options : mapping, optional
        For fsspec.

    Raises
    ------
    FileNotFoundError
        There is no group.
    FileExistsError
        There is something already; with "w", something that is not known to be a group.
    FormatError
        It is a file, and no archive.
    ReadOnlyError
        An archive was to be written.

    Examples
    --------
    >>> group = open_group("memory://station.b2d", "w")
    >>> group.create("air/temperature", data=[20.5, 21.0])
    <b2array.NDArray memory://station.b2d/air/temperature.b2nd shape=(2,) dtype=float64 chunks=(2,)>
    >>> group.attrs["place"] = "roof"
    >>> group["air"]["temperature"][:].tolist(), list(group), "air/pressure" in group
    ([20.5, 21.0], ['air'], False)
    """
    if mode not in ("r", "r+", "a", "w", "x"):
        raise ValueError(f"mode must be 'r', 'r+', 'a', 'w' or 'x', not {mode!r}")
    address, options = os.fspath(url), storage_options or {}
    home = Directory(address, options)
    if _is_archive(home.store):
        if mode != "r":
            raise ReadOnlyError(f"{home.url} is an archive, which can only be read; open it with mode='r'")
        return Group(Archive(address, options), "", mode)
    there = home.exists()
    if mode in ("r", "r+") and not there:
        raise FileNotFoundError(f"{home.url}: there is no group")
    if mode == "x" and there:
        raise FileExistsError(f"{home.url} exists")
    if mode == "w" and there:
        home.clear()
    if mode in ("w", "x") or not there:
        home.initialise()
    elif mode == "a":
        home.complete()
    if mode != "r":
        home.settle()
    return Group(home, "", "r" if mode == "r" else "r+")


def _is_archive(store: Store) -> bool:
    """Whether the URL is that of a zip archive and not of a directory or prefix."""
    if store.is_prefix:
        return False
    (head,) = store.head([""], 16)
    if isinstance(head, Exception):
        return False
    if bytes(head.data[2:9]) == b"b2frame":
        raise FormatError(f"{store.url}: expected a group, found a frame (see b2array.open)")
    if bytes(head.data[:4]) in MAGIC:
        return True
    if store.appendable or store.url.endswith(".b2z"):
        raise FormatError(f"{store.url}: expected a directory or a zip archive, found another file")
    return False


class Group(MutableMapping[str, Any]):
    """Named arrays, and groups of them in turn.

    Made by `open_group`. A mapping of the names of what is directly in the group; names with slashes reach further
    down. A group exists as soon as a member's name begins with its own.

    A handle shows the members that there were when they were first asked for, and its own changes; those of others are
    seen after `refresh`. Arrays are opened as they are then. One that has been changed by a `transaction` in the
    meantime is refused with `ConflictError`, so that all that is opened through one handle belongs together.
    Threads may share a handle for reading.
    """

    __slots__ = ("_home", "_mode", "_prefix")

    def __init__(self, home: Directory | Archive, prefix: str, mode: Mode) -> None:
        self._home = home
        self._prefix = prefix
        self._mode: Mode = mode

    @property
    def url(self) -> str:
        """Where the group is, without secrets."""
        return f"{self._home.url}/{self._prefix}".rstrip("/")

    @property
    def name(self) -> str:
        """Its name in the outermost group, which is called ``""`` itself."""
        return self._prefix.rstrip("/")

    @property
    def mode(self) -> Mode:
        """For reading ("r"), or for reading and changing ("r+")."""
        return self._mode

    @property
    def attrs(self) -> Attrs:
        """The group's attributes: a mapping, each assignment to which is a commit."""
        return Attrs(self)

    def _below(self) -> dict[str, str]:
        """Return the paths of all members in and below this group by their names in it; attributes too."""
        n = len(self._prefix)
        return {name[n:]: path for name, path in self._home.members().items() if name.startswith(self._prefix)}

    def _open(self, path: str, mode: Mode) -> NDArray | SChunk:
        held = self._home.open(path, mode)
        return NDArray(held) if path.endswith(ARRAY) or held.frame.metalayer("b2nd") is not None else SChunk(held)

    def __getitem__(self, name: str) -> Any:
        """Open an array (or a super-chunk), or give a group.

        Raises
        ------
        KeyError
            There is no such member.
        FormatError, UnsupportedError
            It is not what it should be; in an archive, it cannot be read in place.
        ConflictError
            It was changed by a transaction after the group was opened.
        """
        try:
            check_name(name)
        except ValueError as error:
            raise KeyError(str(error)) from None
        below = self._below()
        path = below.get(name)
        if path is not None:
            return self._open(path, self._mode)
        if any(other.startswith(name + "/") for other in below):
            return Group(self._home, f"{self._prefix}{name}/", self._mode)
        raise KeyError(f"{name!r}: {self.url} has no such member")

    def __contains__(self, name: object) -> bool:
        return (
            isinstance(name, str) and any(f"{other}/".startswith(f"{name}/") for other in self._shown()) and bool(name)
        )

    def _shown(self) -> Iterator[str]:
        for name in self._below():
            # Attributes are no member, but make a group of what has them.
            yield name.removesuffix(ATTRS).rstrip("/") if name.rpartition("/")[2] == ATTRS else name

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name.partition("/")[0] for name in self._shown() if name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _split(self) -> tuple[list[str], list[str]]:
        below = self._below()
        names = [*self]
        return [name for name in names if name in below], [name for name in names if name not in below]

    def arrays(self) -> dict[str, Any]:
        """Open the members that are directly in this group and are no groups."""
        return {name: self[name] for name in self._split()[0]}

    def groups(self) -> dict[str, Group]:
        """Return the groups that are directly in this one."""
        return {name: self[name] for name in self._split()[1]}

    def tree(self) -> str:
        """Draw the members and groups as text, without opening them.

        Examples
        --------
        >>> group = open_group("memory://tree.b2d", "w")
        >>> for name in ("a/x", "a/y", "b"):
        ...     _ = group.create(name, (2,))
        >>> print(group.tree())
        /
        ├── a
        │   ├── x
        │   └── y
        └── b
        """
        return "\n".join([f"/{self.name}", *_branches(_nested(self._shown()))])

    # Changing.

    def _writable(self) -> Directory:
        if self._mode == "r" or isinstance(self._home, Archive):
            raise ReadOnlyError(f"{self.url} was opened for reading; open it with mode='r+' to change it")
        return self._home

    def create(
        self, name: str, shape: Shape | None = None, dtype: npt.DTypeLike | None = None, *, data: Any = None,
        **options: Any,
    ) -> NDArray:  # fmt: skip
        """Make an array.

        Parameters
        ----------
        name : str
            Groups that its name goes through come to be.
        shape, dtype
            As for `b2array.create`.
        data : array-like, optional
            What the array holds, in the place of shape and type.
        **options
            What else `b2array.create` takes.

        Raises
        ------
        FileExistsError
            There is a member or a group of that name; with ``overwrite=True`` an array is replaced.
        ValueError
            The name cannot be a member's, or a part of it is an array already.
        """
        home = self._writable()
        path = self._check_free(name, overwrite=options.get("overwrite", False))
        options = {**options, **home.options, "url": home.address(path)}
        options["overwrite"] = options.get("overwrite", False) or (isinstance(home, Joint) and home.anew)
        if (data is None) == (shape is None):
            raise TypeError("create() takes either a shape or data")
        full = self._prefix + name
        if isinstance(home, Joint) and (old := home.removed(full)) is not None:
            given = {**options, "overwrite": True}
            held = home.replace(full, lambda url: _drafted(shape, dtype, data, {**given, "url": url}))
            if held is not None:
                return NDArray(held)
            # It cannot be where a frame of the other kind is until the commit.
            path = full + (_OTHER if old.endswith(ARRAY) else ARRAY)
            options["url"] = home.address(path)
        with home.making(full, path, overwrite=options["overwrite"]):
            if shape is not None:
                return creation.create(shape=shape, dtype=float if dtype is None else dtype, **options)
            return creation.asarray(data, dtype=dtype, **options)

    def _check_free(self, name: str, *, overwrite: bool) -> str:
        full = self._prefix + check_name(name)
        members = self._home.members()
        if not overwrite and full in members:
            raise FileExistsError(f"{self.url}: there is a member {name!r}; overwrite=True replaces it")
        if any(other.startswith(full + "/") for other in members):
            raise FileExistsError(f"{self.url}: there is a group {name!r}")
        parts = full.split("/")
        for n in range(1, len(parts)):
            if (outer := "/".join(parts[:n])) in members:
                raise ValueError(f"{name!r} cannot name a member: {outer!r} is an array, and no group")
        return full + ARRAY

    def create_group(self, name: str) -> Group:
        """Make an empty group, or return the one that is there."""
        self._writable()
        if not isinstance(self.get(check_name(name)), Group):
            self._check_free(name, overwrite=False)
            inner = Group(self._home, f"{self._prefix}{name}/", self._mode)
            inner.attrs._held(create=True)
        return Group(self._home, f"{self._prefix}{name}/", self._mode)

    def __setitem__(self, name: str, value: Any) -> None:
        """Store an array-like, in the place of an array that may be there."""
        self.create(name, data=value, overwrite=True).close()

    def __delitem__(self, name: str) -> None:
        home = self._writable()
        below = self._below()
        doomed = {other: path for other, path in below.items() if f"{other}/".startswith(f"{name}/")}
        if not name or not doomed:
            raise KeyError(name)
        home.remove({self._prefix + other: path for other, path in doomed.items()})

    @contextmanager
    def transaction(self, *, anew: bool = False) -> Iterator[Group]:
        """Make everything that is changed inside the ``with`` block one commit.

        What is changed through the group that the block is given, and through arrays that are taken from it, is part of
        the commit; other handles show nothing of it before. If the block raises, nothing has happened. A reader who
        opens members through one group sees all of the commit or nothing of it. Who opens a member past the group, by
        its own URL, or as python-blosc2 does, may see it before or after others.

        Parameters
        ----------
        anew : bool, default False
            Whether the block begins with a group without members and attributes. Those that were there go with the
            commit; until then they can be read through handles that were opened before.

        Raises
        ------
        ValueError
            A transaction is under way already; or, in the block, a member that was not deleted is to be replaced.
        ConflictError
            Another writer changed what was read or written in the block. Nothing has happened then.

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
        home = self._writable()
        if isinstance(home, Joint):
            raise ValueError("a transaction is under way on this group already")  # noqa: TRY004 - not the user's type
        joint = Joint(home, self._prefix if anew else None)
        try:
            yield Group(joint, self._prefix, self._mode)
        except BaseException:
            joint.abort()
            raise
        joint.commit()

    def refresh(self) -> None:
        """Show what others have done to the group since it was opened. Arrays that are open stay as they are."""
        self._home.refresh()

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<b2array.Group {self.url}: {len(self)} members>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.tree())}</pre>"


class Attrs(MutableMapping[str, Any]):
    """The attributes of a group, in a frame without chunks as python-blosc2's ``TreeStore`` has them."""

    __slots__ = ("_group", "_known")

    def __init__(self, group: Group) -> None:
        self._group = group
        self._known: MutableMapping[str, Any] | None = None

    def _held(self, *, create: bool = False) -> Handle | None:
        group = self._group
        full = group._prefix + ATTRS
        path = group._home.members().get(full)
        held = None if path is None else group._home.open(path, group.mode)
        if not create or (held is not None and held.mode == "r+"):
            return held
        home, path = group._writable(), full + ".b2f"
        if isinstance(home, Joint) and (revived := home.revive(full)) is not None:
            return revived
        overwrite = isinstance(home, Joint) and home.anew
        with home.making(full, path, overwrite=overwrite):
            made = create_schunk(home.address(path), chunksize=2**13, overwrite=overwrite, **home.options)
            if held is not None:  # embedded, where it cannot be changed
                with made.transaction():
                    made.vlmeta.update(Layers(held))
        return made._handle

    def _layers(self) -> MutableMapping[str, Any]:
        # Opened once, for whoever goes through all of them.
        if self._known is None:
            held = self._held()
            self._known = {} if held is None else Layers(held)
        return self._known

    def __getitem__(self, name: str) -> Any:
        return self._layers()[name]

    def _changeable(self) -> MutableMapping[str, Any]:
        self._group._writable()
        held = self._held(create=True)
        self._known = {} if held is None else Layers(held)
        return self._known

    def __setitem__(self, name: str, value: Any) -> None:
        self._changeable()[name] = value

    def __delitem__(self, name: str) -> None:
        self._group._writable()
        if name not in self:
            raise KeyError(name)
        del self._changeable()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._layers()

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers())

    def __len__(self) -> int:
        return len(self._layers())

    def __repr__(self) -> str:
        return repr(dict(self))


def _drafted(shape: Shape | None, dtype: npt.DTypeLike | None, data: Any, options: dict[str, Any]) -> Transaction:
    if shape is None:
        return creation.holding(data, dtype=dtype, **options)
    return creation.filled(shape=shape, dtype=float if dtype is None else dtype, **options)


def _nested(names: Iterator[str]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for name in names:
        node = root
        for part in filter(None, name.split("/")):
            node = node.setdefault(part, {})
    return root


def _branches(tree: Mapping[str, Any]) -> Iterator[str]:
    for n, (name, inner) in enumerate(tree.items(), 1):
        last = n == len(tree)
        yield ("└── " if last else "├── ") + name
        for line in _branches(inner):
            yield ("    " if last else "│   ") + line
