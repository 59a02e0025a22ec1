"""The manifest of a group: the object that lists its members, and changes that they do not show yet.

This module does no I/O. A member is a frame, in one file or in a directory or prefix of its own. Its path is its name
with a suffix for its kind, as in the directories of python-blosc2's ``TreeStore``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Self

import msgpack

from b2array.buffers import Buffer
from b2array.engine.source import EMBEDDED, FRAME_NAME
from b2array.errors import FormatError, UnsupportedError
from b2array.format import recent, summary
from b2array.format.summary import Record
from b2array.store.endings import LOCK, TEMPORARY

__all__ = [
    "ARRAY", "ATTRS", "EMBEDDED", "MANIFEST", "OTHER", "SUFFIXES", "Manifest", "check_name", "check_new", "check_path",
    "is_embedded", "is_member_name", "members_among", "staged_path",
]  # fmt: skip

MANIFEST = ".b2group"
"""The object that holds the manifest."""
ATTRS = "__vlmeta__"
"""Last part of the name of the frame with a group's attributes."""
ARRAY = ".b2nd"
OTHER = ".b2f"
"""Suffix of super-chunks; also of an array if a frame of another kind has the usual path."""
SUFFIXES = (ARRAY, OTHER, ".b2b")

_MAGIC = "b2array group"
_VERSION = 1
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")
_UNREADABLE = (ValueError, TypeError, LookupError, RecursionError, MemoryError, msgpack.UnpackException)


def check_name(name: str) -> str:
    """Check a member's name, and return it without a slash at the beginning.

    Raises ValueError for empty parts, the parts "." and "..", control characters, backslashes and reserved endings.

    Examples
    --------
    >>> check_name("/ocean/temperature")
    'ocean/temperature'
    >>> check_name("../temperature")
    Traceback (most recent call last):
    ValueError: '../temperature' cannot name a member: it has the part '..'
    """
    if not isinstance(name, str):
        raise TypeError(f"names of members are str, not {type(name).__name__}")
    if reason := _refused(name.removeprefix("/")):
        raise ValueError(f"{name!r} cannot name a member: {reason}")
    return name.removeprefix("/")


def check_new(name: str, members: Collection[str], url: str) -> None:
    """Check the name of a new member of the group at a URL; raise nothing if it has such a member.

    Raises FileExistsError if there is a group of that name. Raises ValueError for names that not every place can hold,
    and if a part of the name is an array.
    """
    if name in members:
        return
    if any(other.startswith(f"{name}/") for other in members):
        raise FileExistsError(f"{url}: there is a group {name!r}")
    refused = f"{url}: {name!r} cannot name a member"
    if not is_member_name(name):
        raise ValueError(refused)
    for outer in accumulate(name.split("/")[:-1], "{}/{}".format):
        if outer in members:
            raise ValueError(f"{refused}: {outer!r} is an array, not a group")
    for text in ("::", "?versionId="):
        if text in name:
            raise ValueError(f"{refused}: {text!r} has a meaning of its own in URLs")
    for part in name.split("/"):
        if part in (MANIFEST, EMBEDDED) or part.endswith((LOCK, TEMPORARY)):
            raise ValueError(f"{refused}: {part!r} names a file that is not a member")


def _refused(name: str) -> str:
    """Return why a name is refused; empty for a valid name."""
    if not name:
        return "it is empty"
    if _FORBIDDEN.search(name):
        return "it has control characters or backslashes"
    for part in name.split("/"):
        if part in ("", ".", ".."):
            return f"it has the part {part!r}"
        if part == ATTRS or part.endswith(SUFFIXES):
            return f"{part!r} is reserved"
    return ""


def is_member_name(name: str) -> bool:
    """Whether a name can be that of a member, or of a group's attributes."""
    group = name.removesuffix(ATTRS)
    return not _refused(name) if group == name else not _refused(group.removesuffix("/") or "any")


def check_path(path: str) -> None:
    """Raise `FormatError` unless a path is that of a file below a directory."""
    parts = path.split("/")
    if "\0" in path or "\\" in path or any(part in ("", ".", "..") for part in parts):
        raise FormatError(f"expected relative paths of files, found {path!r}")


def members_among(paths: Iterable[str]) -> dict[str, str]:
    """Find the members among the files of a directory: their paths by name, in the order of the names.

    Frames with attributes are among them.

    Examples
    --------
    >>> members_among(["b/c.b2nd", "b/c.b2nd.b2lock", "a.b2nd/chunks.b2frame", "a.b2nd/00000000.chunk", "embed.b2e"])
    {'a': 'a.b2nd', 'b/c': 'b/c.b2nd'}
    """
    members = {}
    for path in sorted(paths):
        member = path.removesuffix("/" + FRAME_NAME)
        name = member.rpartition(".")[0]
        if member.endswith(SUFFIXES) and is_member_name(name):
            members[name] = member
    return dict(sorted(members.items()))


def staged_path(path: str, token: str, *, sparse: bool) -> str:
    """Return the path of a staged frame: the object that will replace a member's frame."""
    return f"{path}/{FRAME_NAME}.{token}{TEMPORARY}" if sparse else f"{path}.{token}{TEMPORARY}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a group records about its members.

    `members` has the path of each by its name; None where the files themselves are the list. `identity` tells this
    group from others: a member may be a copy from there. `number` is that of the last transaction, and `redo` its redo
    log: by the path of each member that it changed, the header to write over the beginning of the file, or the token of
    the staged frame that replaces the member's frame. `hidden` are paths that are not members yet, or not any more, and
    `removed` those that the last transaction deleted; their files may still be there. `summaries` are packed by
    `b2array.format.summary`. `unknown` are entries of later versions; they are kept.

    Examples
    --------
    >>> manifest = Manifest({"a/b": "a/b.b2nd"}, number=3)
    >>> Manifest.unpack(manifest.pack()) == manifest
    True
    """

    members: Mapping[str, str] | None = None
    identity: str = ""
    number: int = 0
    redo: Mapping[str, bytes | str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    summaries: bytes = b""
    unknown: tuple[tuple[Any, Any], ...] = ()

    @property
    def commit(self) -> tuple[str, int]:
        """The last transaction, in the form that its members record."""
        return self.identity, self.number

    @property
    def unseen(self) -> frozenset[str]:
        """The paths that readers may not see."""
        return frozenset((*self.hidden, *self.removed))

    def visible(self, members: Mapping[str, str]) -> dict[str, str]:
        """Return the members that readers may see, in the order of their names."""
        unseen = self.unseen
        return dict(sorted((name, path) for name, path in members.items() if path not in unseen))

    def with_member(self, name: str, path: str) -> Self:
        """Return the manifest with one more member."""
        members = None if self.members is None else dict(sorted({**self.members, name: path}.items()))
        return replace(self.revealing([path]), members=members)

    def without(self, names: Collection[str]) -> Self:
        """Return the manifest without some members."""
        kept = {name: path for name, path in (self.members or {}).items() if name not in names}
        return self if self.members is None else replace(self, members=kept)

    def with_summaries(
        self, records: Mapping[str, Record | None], gone: Collection[str] = (), members: Mapping[str, str] | None = None
    ) -> Self:
        """Return the manifest with other summaries by paths, and without those of paths that are gone.

        `members` has all paths by names. Those without a summary are listed among the summaries, too.
        """
        paths = [EMBEDDED if is_embedded(path) else path for path in (members or {}).values()]
        found = {**dict.fromkeys(paths), **summary.unpack_all(self.summaries), **records}
        if not self.summaries and not paths:
            return self
        return replace(self, summaries=summary.pack_all({path: found[path] for path in found if path not in gone}))

    def hiding(self, path: str) -> Self:
        """Return the manifest with a path hidden, for a member in the making."""
        revealed = self.revealing([path])
        return replace(revealed, hidden=(*revealed.hidden, path))

    def revealing(self, paths: Collection[str]) -> Self:
        """Return the manifest without anything that hides these paths."""
        hidden, removed = (tuple(path for path in each if path not in paths) for each in (self.hidden, self.removed))
        return replace(self, hidden=hidden, removed=removed)

    def with_commit(self, token: str) -> Self:
        """Return the manifest with the token of its transaction before those of the last ones."""
        return replace(self, unknown=recent.with_commit(self.unknown, bytes.fromhex(token)))

    def follows(self, other: Self) -> bool:
        """Whether transactions on top of the other manifest's have led to this one."""
        return recent.has_commit(self.unknown, recent.last_commit(other.unknown))

    def applied(self) -> Self:
        """Return the manifest for the time when all files agree with it."""
        return replace(self.revealing(self.removed), redo={})

    def pack(self) -> bytes:
        """Return the manifest as bytes."""
        known = {key: getattr(self, name) for key, name in _FIELDS.items()}
        known |= {"removed": self.removed} if self.removed else {}
        known |= {"summaries": self.summaries} if self.summaries else {}
        packed: bytes = msgpack.packb({"format": _MAGIC, "version": _VERSION, **known, **dict(self.unknown)})
        return packed

    @classmethod
    def unpack(cls, buf: Buffer) -> Self:
        """Read a manifest."""
        try:
            content = msgpack.unpackb(buf, strict_map_key=False)
        except _UNREADABLE as error:
            raise FormatError(f"expected a group's manifest, found other bytes ({error})") from None
        if not isinstance(content, dict) or content.pop("format", None) != _MAGIC:
            raise FormatError("expected a group's manifest, found something else")
        version = content.pop("version", None)
        if type(version) is not int or version < 1:
            raise FormatError(f"expected a manifest of version {_VERSION}, found {version!r}")
        if version > _VERSION:
            raise UnsupportedError(f"expected a manifest of version {_VERSION}, found the later version {version}")
        if "members" not in content:
            raise FormatError("expected members in the manifest, found none")
        members, identity, number, redo, hidden = (content.pop(key, None) for key in _FIELDS)
        for name, path in _checked("members", {} if members is None else members, dict).items():
            if not isinstance(name, str) or not isinstance(path, str) or not _belong(name, path):
                raise FormatError(f"expected a member's name and path in the manifest, found {name!r} at {path!r}")
        for path, change in _checked("pending", redo, dict).items():
            if not _is_path(path) or not (isinstance(change, bytes) or _is_token(change)):
                raise FormatError(f"expected a member's path and its change in the manifest, found {path!r}")
        removed, summaries = content.pop("removed", []), content.pop("summaries", b"")
        for path in (*_checked("hidden", hidden, list), *_checked("removed", removed, list)):
            if not _is_path(path) and not (path in removed and is_embedded(path)):
                raise FormatError(f"expected a member's path in the manifest, found {path!r}")
        _checked("ident", identity, str)
        _checked("number", number, int)
        _checked("summaries", summaries, bytes)
        return cls(members, identity, number, redo, tuple(hidden), tuple(removed), summaries, tuple(content.items()))


_FIELDS = {"members": "members", "ident": "identity", "number": "number", "pending": "redo", "hidden": "hidden"}
"""The field for each stored key, in the order of `Manifest`."""


def _checked(key: str, value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise FormatError(f"expected {key!r} of type {kind.__name__} in the manifest, found {type(value).__name__}")
    return value


def _belong(name: str, path: str) -> bool:
    return members_among([path]) == {name: path} or (path == f"{EMBEDDED}/{name}" and is_embedded(path))


def is_embedded(path: object) -> bool:
    """Whether a path stands for a member in the embedding frame."""
    return isinstance(path, str) and path.startswith(f"{EMBEDDED}/") and is_member_name(path[len(EMBEDDED) + 1 :])


def _is_path(path: object) -> bool:
    return isinstance(path, str) and bool(members_among([path]))


def _is_token(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch(r"[0-9a-f]{16}", text) is not None
