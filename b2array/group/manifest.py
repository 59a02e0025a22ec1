"""The names of a group's members, and the list of them that a group in an object store keeps.

A member is a frame: in a file, or in a directory or prefix of its own. Its path is its name with a suffix that says of
what kind it is, as in the directories of python-blosc2's ``TreeStore``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import msgpack

from b2array.buffers import Buffer
from b2array.engine.source import FRAME_NAME
from b2array.errors import FormatError, UnsupportedError

__all__ = [
    "ARRAY", "ATTRS", "EMBEDDED", "LIST_NAME", "SUFFIXES", "MemberList", "check_member", "check_name", "check_path",
    "found",
]  # fmt: skip

LIST_NAME = ".b2group"
"""The object with the list of members."""
EMBEDDED = "embed.b2e"
"""The frame in which python-blosc2 keeps small members. Without it, it does not take a directory for a store."""
ATTRS = "__vlmeta__"
"""Last part of the name of the frame that has a group's attributes."""
ARRAY = ".b2nd"
SUFFIXES = (ARRAY, ".b2f", ".b2b")

_MAGIC = "b2array group"
_VERSION = 1
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")
_UNREADABLE = (ValueError, TypeError, LookupError, RecursionError, MemoryError, msgpack.UnpackException)


def check_name(name: str) -> str:
    """Return a name that can be a member's.

    Raises
    ------
    ValueError
        It is empty or absolute, has empty parts or the parts "." or "..", control characters or backslashes, or ends
        in a way that is reserved.

    Examples
    --------
    >>> check_name("ocean/temperature")
    'ocean/temperature'
    >>> check_name("../temperature")
    Traceback (most recent call last):
    ValueError: '../temperature' cannot name a member: it has the part '..'
    """
    if not isinstance(name, str):
        raise TypeError(f"names of members are str, not {type(name).__name__}")
    reason = _reason(name)
    if reason:
        raise ValueError(f"{name!r} cannot name a member: {reason}")
    return name


def _reason(name: str) -> str:
    if not name:
        return "it is empty"
    if name.startswith("/"):
        return "it begins with a slash"
    if _FORBIDDEN.search(name):
        return "it has control characters or backslashes"
    for part in name.split("/"):
        if part in ("", ".", ".."):
            return f"it has the part {part!r}"
        if part == ATTRS or part.endswith(SUFFIXES):
            return f"{part!r} is reserved"
    return ""


def check_member(name: str) -> bool:
    """Whether a name can be that of a member, or of a group's attributes."""
    group = name.removesuffix(ATTRS)
    return not _reason(name) if group == name else not _reason(group.removesuffix("/") or "any")


def check_path(path: str) -> None:
    """Raise `FormatError` if a path is not one of a file below a directory."""
    parts = path.split("/")
    if "\0" in path or "\\" in path or any(part in ("", ".", "..") for part in parts):
        raise FormatError(f"expected relative paths of files, found {path!r}")


def found(paths: Iterable[str]) -> dict[str, str]:
    """Find the members among the files of a directory.

    Parameters
    ----------
    paths : iterable of str
        Files, relative to the directory, with slashes.

    Returns
    -------
    dict of str to str
        Path of each member by its name, in the order of the names. Those with attributes are among them.

    Examples
    --------
    >>> found(["b/c.b2nd", "b/c.b2nd.b2lock", "a.b2nd/chunks.b2frame", "a.b2nd/00000000.chunk", "embed.b2e"])
    {'a': 'a.b2nd', 'b/c': 'b/c.b2nd'}
    """
    members = {}
    for path in sorted(paths):
        member = path.removesuffix("/" + FRAME_NAME)
        name = member.rpartition(".")[0]
        if member.endswith(SUFFIXES) and check_member(name):
            members[name] = member
    return dict(sorted(members.items()))


@dataclass(frozen=True, slots=True)
class MemberList:
    """What a group notes of its members. Each commit of several members at once has a number.

    Parameters
    ----------
    members : mapping of str to str, optional
        Path of each member by its name; None where the files themselves are the list.
    ident : str
        Tells the list from those of other groups, from which members may have been copied.
    number : int
        Of the last such commit.
    pending : mapping of str to (bytes or str)
        For each path that it changed, as long as the member's own frame may be an older one: the header to be written
        over the beginning of the file, or the name of the object beside it that takes its place.
    hidden : tuple of str
        Paths that are no members yet, or no longer.
    unknown : tuple of (key, value)
        Entries that a later version added; they are kept.

    Examples
    --------
    >>> listed = MemberList({"a/b": "a/b.b2nd"}, number=3)
    >>> MemberList.unpack(listed.pack()) == listed
    True
    """

    members: Mapping[str, str] | None = None
    ident: str = ""
    number: int = 0
    pending: Mapping[str, bytes | str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    unknown: tuple[tuple[Any, Any], ...] = ()

    def pack(self) -> bytes:
        """Return the list as bytes."""
        known = {name: getattr(self, name) for name in _FIELDS}
        packed: bytes = msgpack.packb({"format": _MAGIC, "version": _VERSION, **known, **dict(self.unknown)})
        return packed

    @classmethod
    def unpack(cls, buf: Buffer) -> Self:
        """Read a list.

        Raises
        ------
        FormatError
            It is none, or names members that no group can have.
        UnsupportedError
            It was written by a later version, which this one cannot follow.
        """
        try:
            content = msgpack.unpackb(buf, strict_map_key=False)
        except _UNREADABLE as error:
            raise FormatError(f"expected a list of members, found other bytes ({error})") from None
        if not isinstance(content, dict) or content.get("format") != _MAGIC:
            raise FormatError("expected a list of members, found something else")
        version = content.pop("version", None)
        if type(version) is not int or version < 1:
            raise FormatError(f"expected a list of members of version {_VERSION}, found {version!r}")
        if version > _VERSION:
            raise UnsupportedError(f"the list of members has version {version}, known here is {_VERSION}")
        del content["format"]
        if "members" not in content:
            raise FormatError("expected members in the list, found none")
        members, ident, number, pending, hidden = (content.pop(name, None) for name in _FIELDS)
        for name, path in _checked("members", {} if members is None else members, dict).items():
            if not isinstance(name, str) or not isinstance(path, str) or not _fit(name, path):
                raise FormatError(f"expected a member's name and path in the list, found {name!r} at {path!r}")
        for path, change in _checked("pending", pending, dict).items():
            if not _is_member(path) or not (isinstance(change, bytes) or _is_beside(change)):
                raise FormatError(f"expected a member's path and its new state in the list, found {path!r}")
        for path in _checked("hidden", hidden, list):
            if not _is_member(path):
                raise FormatError(f"expected a member's path in the list, found {path!r}")
        number = _checked("number", number, int)
        return cls(members, _checked("ident", ident, str), number, pending, tuple(hidden), tuple(content.items()))


_FIELDS = ("members", "ident", "number", "pending", "hidden")


def _checked(name: str, value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise FormatError(f"expected {name!r} of type {kind.__name__} in the list, found {type(value).__name__}")
    return value


def _fit(name: str, path: str) -> bool:
    return found([path]) == {name: path} or (path == f"{EMBEDDED}/{name}" and check_member(name))


def _is_member(path: object) -> bool:
    return isinstance(path, str) and bool(found([path]))


def _is_beside(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(r"[0-9a-f]{16}", name) is not None
