"""The manifest of a group: the object that lists its members, or the steps that still publish their committed states.

This module does no I/O. A member is a frame: one file, or one directory or prefix. Its path is its name with a suffix
for its kind, as in the directories of python-blosc2's ``TreeStore``.

A new field belongs in `Manifest`, in its `pack` and in its `unpack`. Earlier versions of b2array keep a field that they
do not know (`Manifest.unknown`), but do not act on it. If that could lose data, `_VERSION` must be higher as well.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PureWindowsPath
from typing import Any, Final, Literal, NamedTuple, Self, get_args

import msgpack

from b2array.buffers import Buffer
from b2array.errors import ChecksumError, FormatError, UnsupportedError
from b2array.format import recent, summary
from b2array.format.ledger import KEPT, seal
from b2array.format.summary import Record
from b2array.frame.source import EMBEDDED, FRAME_NAME
from b2array.store.endings import JOURNAL, LOCK, TEMPORARY, WORK

__all__ = [
    "ARRAY",
    "ATTRS",
    "DATA",
    "EMBEDDED",
    "MANIFEST",
    "OTHER",
    "RETIRED",
    "SUFFIXES",
    "Kind",
    "Manifest",
    "PendingStep",
    "Retired",
    "RetiredFrame",
    "Row",
    "check_name",
    "check_new_name",
    "check_path",
    "data_path",
    "index_name",
    "is_attrs",
    "is_embedded",
    "is_file_of_group",
    "is_index_name",
    "is_member_name",
    "members_among",
    "mounts_among",
    "name_of",
    "own_files",
    "refuse_other_names",
    "require_member_name",
    "retired_path",
    "staged_path",
]

MANIFEST = ".b2group"
"""The object that holds the manifest."""
ATTRS = "__vlmeta__"
"""Last part of the name of the frame with a group's attributes."""
ARRAY = ".b2nd"
"""Usual suffix of arrays."""
OTHER = ".b2f"
"""Suffix of super-chunks; also of an array, if another kind of frame occupies its usual path."""
SUFFIXES = (ARRAY, OTHER, ".b2b")
RETIRED = ".b2retired"
"""The directory or prefix with the frames that keep states of deleted members for snapshots of the group."""
DATA = ".b2data"
"""The prefix, in an object store, with the revisions of contiguous members."""

_INDEXES = "_indexes"
"""The part of the path of an index in a table of python-blosc2."""

_MAGIC = "b2array group"
_VERSION = 1
# Some systems and object stores refuse control characters, and Windows takes a backslash for a slash.
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
# Characters in names of files that no program means as names of members.
_UNUSUAL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_UNREADABLE = (ValueError, TypeError, LookupError, RecursionError, MemoryError, msgpack.UnpackException)


def check_name(name: str) -> str:
    """Check a member's name, and return it without a slash at the beginning.

    Raises ValueError for empty parts, the parts "." and "..", control characters, backslashes and reserved endings, and
    TypeError if the name is not a str.

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
    if reason := _reason_to_refuse(name.removeprefix("/")):
        raise ValueError(f"{name!r} cannot name a member: {reason}")
    return name.removeprefix("/")


def check_new_name(name: str) -> str:
    """Check a name that a user gives, as `check_name` does, and refuse names that only python-blosc2 gives to indexes.

    Examples
    --------
    >>> check_name("_indexes/column.b2nd/values")
    '_indexes/column.b2nd/values'
    >>> check_new_name("_indexes/column.b2nd/values")
    Traceback (most recent call last):
    ValueError: '_indexes/column.b2nd/values' cannot name a member: 'column.b2nd' is reserved
    """
    name = check_name(name)
    reserved = next((part for part in name.split("/") if part.endswith(SUFFIXES)), None)
    # Such a directory may also be the place of an array.
    if reserved is not None:
        raise ValueError(f"{name!r} cannot name a member: {reserved!r} is reserved")
    return name


def _reason_to_refuse(name: str) -> str:
    """Return why a name is refused; empty for a valid name."""
    if not name:
        return "it is empty"
    parts = name.split("/")
    # python-blosc2 gives the directories of indexes the names of a table's columns, which may be any.
    first_column = parts.index(_INDEXES) + 1 if _INDEXES in parts else len(parts)
    if (_CONTROL if _INDEXES in parts else _FORBIDDEN).search(name):
        return "it has control characters or backslashes"
    # Python decodes other bytes in the name of a file to surrogates, which msgpack and object stores refuse.
    if _SURROGATE.search(name):
        return "it cannot be written as UTF-8"
    for number, part in enumerate(parts, 1):
        if part in ("", ".", ".."):
            return f"it has the part {part!r}"
        is_column = first_column < number < len(parts)
        if part == ATTRS or (part.endswith(SUFFIXES) and not is_column):
            return f"{part!r} is reserved"
    return ""


def is_file_of_group(part: str) -> bool:
    """Whether a part of a path names a file of a group that is not a member."""
    if part in (MANIFEST, EMBEDDED, RETIRED):
        return True
    return part.endswith((LOCK, TEMPORARY, JOURNAL, WORK, KEPT))


def is_member_name(name: str) -> bool:
    """Whether a member, or the frame with a group's attributes, can have this name."""
    group = name.removesuffix(ATTRS)
    if group == name:
        return not _reason_to_refuse(name)
    # The attributes of the outermost group have no name in front.
    return not _reason_to_refuse(group.removesuffix("/") or "any")


def check_path(path: str) -> None:
    """Raise `FormatError` unless a path leads to a file below a directory, and not out of it, on Windows as well.

    UnsupportedError: the path has a backslash, with which it leads to different files on different systems. Indexes of
    tables may have backslashes.
    """
    parts = path.split("/")
    leads_out = "" in parts or any(part in (".", "..") for part in re.split(r"[/\\]", path))
    has_backslash = "\\" in path and _INDEXES not in parts
    has_drive = "\\" in path and PureWindowsPath(path).anchor
    if leads_out or "\0" in path or has_drive:
        raise FormatError(f"expected relative paths of files, found {path!r}")
    if has_backslash:
        raise UnsupportedError(f"the file {path!r} cannot be shown here: a backslash separates directories on Windows")


def refuse_other_names(paths: Iterable[str]) -> None:
    """Raise UnsupportedError if python-blosc2 made one of these files of a group for a name that is reserved here.

    Without this error, lists and copies would omit such members. Names that are not text, or have control characters,
    are ignored: a stray file must not make the members unreachable.
    """
    for path in paths:
        member = path.removesuffix("/" + FRAME_NAME)
        if not member.endswith(SUFFIXES):
            continue
        name = member.rpartition(".")[0]
        parts = name.split("/")
        # Indexes of a table have the names of its columns, which may be any; nobody but python-blosc2 reads indexes.
        is_index = _INDEXES in parts
        # A file that is only a suffix is no member of python-blosc2 either.
        is_of_stock = parts[-1] and not is_index and not any(map(is_file_of_group, parts))
        if is_of_stock and not _UNUSUAL.search(name):
            require_member_name(name)


def require_member_name(name: str) -> None:
    """Raise UnsupportedError if b2array cannot give this name of python-blosc2 to a member."""
    if not is_member_name(name):
        raise UnsupportedError(
            f"the member {name!r} of python-blosc2 cannot be shown here: {_reason_to_refuse(name)}; let python-blosc2"
            " copy it to another name and delete it"
        )


def members_among(paths: Iterable[str]) -> dict[str, str]:
    """Return the members among the files of a directory: their paths by name, in the order of the names.

    Frames with attributes of groups count as members.

    Examples
    --------
    >>> members_among(["b/c.b2nd", "b/c.b2nd.b2lock", "a.b2nd/chunks.b2frame", "a.b2nd/00000000.chunk", "embed.b2e"])
    {'a': 'a.b2nd', 'b/c': 'b/c.b2nd'}
    """
    members = {}
    # Of several kinds with one name, the last suffix in this order counts: an array.
    for path in sorted(paths):
        member = path.removesuffix("/" + FRAME_NAME)
        name = member.rpartition(".")[0]
        if member.endswith(SUFFIXES) and is_member_name(name):
            members[name] = member
    return dict(sorted(members.items()))


def mounts_among(paths: Iterable[str]) -> list[str]:
    """Return the names of the groups directly inside a group, given the files of the group.

    A group has a manifest, or an embedding frame until its first commit writes one.

    Examples
    --------
    >>> mounts_among([".b2group", "x.b2nd", "run/.b2group", "run/1/.b2group", "old/embed.b2e", "old/y.b2nd"])
    ['old', 'run']
    """
    places = {path.rpartition("/")[0] for path in paths if path.rpartition("/")[2] in (MANIFEST, EMBEDDED)}
    names: list[str] = []
    for name in sorted(filter(is_member_name, places)):
        if not any(name.startswith(f"{outer}/") for outer in names):
            names.append(name)
    return names


def own_files(paths: Collection[str]) -> Collection[str]:
    """Return the files of a group without the files of groups inside it: it owns everything up to the next group.

    Examples
    --------
    >>> own_files([".b2group", "x.b2nd", "run/.b2group", "run/y.b2nd"])
    ['.b2group', 'x.b2nd']
    """
    fronts = tuple(f"{name}/" for name in mounts_among(paths))
    return [path for path in paths if not path.startswith(fronts)] if fronts else paths


def staged_path(path: str, token: str, *, sparse: bool) -> str:
    """Return the path of the staged object that will replace a member's frame, or the index of a `sparse` one."""
    if sparse:
        path = f"{path}/{FRAME_NAME}"
    return f"{path}.{token}{TEMPORARY}"


Kind = Literal["patch", "index", "frame", "delete"]
"""How a member changes: a writer writes a header over the beginning of its file ("patch"), replaces its index or its
frame, or deletes it."""
_KINDS: Final = get_args(Kind)


@dataclass(frozen=True, slots=True)
class PendingStep:
    """The change of one member by a commit; `b2array.catalog.redo` determines the step that it still requires.

    Parameters
    ----------
    kind : {"patch", "index", "frame", "delete"}
        How the member changes.
    before : str
        The name of the old state; "" for a new member. A "patch" or an "index" replaces one state, named by its
        generation. A "frame" or a "delete" replaces a frame, named by its identity, even if it was written to since. A
        frame by other software has no identity and is named by its generation; a damaged frame is named by the version
        of its file.
    after : str
        The generation of the new state; "" for a deleted member.
    payload : bytes or str
        For a "patch", the header. For another kind a token: it names the staged index or frame, or the place to which
        a deleted frame is moved first.
    """

    kind: Kind
    before: str
    after: str
    payload: bytes | str

    @property
    def header(self) -> bytes:
        """The header that a "patch" writes; empty for other kinds."""
        return self.payload if isinstance(self.payload, bytes) else b""

    @property
    def token(self) -> str:
        """The token in the name of the staged file; empty for a "patch"."""
        return self.payload if isinstance(self.payload, str) else ""

    def aside(self, path: str) -> str:
        """Return the path of the staged index or frame, or of the member's frame during deletion; not for a "patch"."""
        return staged_path(path, self.token, sparse=self.kind == "index")

    def pack(self) -> list[Any]:
        """Return the step as a list that msgpack can pack."""
        return [self.kind, self.before, self.after, self.payload]

    @classmethod
    def unpack(cls, path: object, content: Any) -> Self:
        """Return the step for the member at a path, from what `pack` returned. FormatError: this is something else."""
        if not (_is_path(path) or path == EMBEDDED):
            raise FormatError(f"expected the paths of members among the pending steps of a manifest, found {path!r}")
        parts: list[Any] = [None] * 4
        if isinstance(content, list) and len(content) == 4:
            parts = content
        kind, before, after, payload = parts
        has_payload = type(payload) is bytes if kind == "patch" else _is_token(payload)
        has_states = isinstance(before, str) and isinstance(after, str)
        if kind not in _KINDS or not has_states or not has_payload:
            raise FormatError(f"expected a pending step for {path!r} in a manifest, found something else")
        return cls(kind, before, after, payload)


def index_name(generation: str) -> str:
    """Return the name of the object that holds the index of a revision, next to the chunks of its sparse frame."""
    return f"{FRAME_NAME}.{generation}"


def is_index_name(name: str) -> bool:
    """Whether this is the name of an index as `index_name` returns it."""
    front, _, generation = name.rpartition(".")
    return front == FRAME_NAME and _is_generation(generation)


def data_path(generation: str) -> str:
    """Return the path, in the group, of the object that holds a revision of a contiguous member."""
    return f"{DATA}/{generation}"


@dataclass(frozen=True, slots=True)
class Row:
    """The entry of one member in the manifest of a group in an object store.

    Parameters
    ----------
    path : str
        The path of the member's frame in the group, where commits publish it.
    generation : str
        The name of the committed state of the member. It is part of the name of the object with the index
        (`index_name`, `data_path`), which never changes. Empty if no commit of the group has written the member yet:
        then its state is the published index.
    sparse : bool
        Whether each chunk is a separate object.
    number : int
        The number of the group's commit that wrote this state: an older state has a smaller number.
    next : int
        The first number that no chunk file at this path has ever had.
    """

    path: str
    generation: str = ""
    sparse: bool = True
    number: int = 0
    next: int = 0

    def pack(self) -> list[Any]:
        """Return the row as a list that msgpack can pack."""
        # Every commit writes all rows, and bytes take half the space of the hexadecimal text.
        generation = bytes.fromhex(self.generation)
        return [self.path, generation, self.sparse, self.number, self.next]

    @classmethod
    def unpack(cls, name: object, content: Any) -> Self:
        """Return the row of the member with a name, from what `pack` returned. FormatError: this is something else."""
        parts: list[Any] = [None] * 5
        if isinstance(content, list) and len(content) == 5:
            parts = content
        path, generation, sparse, number, following = parts
        has_path = isinstance(name, str) and isinstance(path, str) and _is_path_of(name, path)
        has_generation = type(generation) is bytes and len(generation) in (0, _GENERATION_NBYTES)
        has_counts = all(type(count) is int and count >= 0 for count in (number, following))
        if not (has_path and has_generation and has_counts) or type(sparse) is not bool:
            raise FormatError(f"expected a member's name and row in the manifest, found {name!r} and {content!r}")
        return cls(path, generation.hex(), sparse, number, following)


_GENERATION_NBYTES = 16


def retired_path(token: str) -> str:
    """Return the path of the retired frame with a token."""
    return f"{RETIRED}/{token}"


Retired = Mapping[str, tuple[tuple[str, bytes], ...]]
"""By the token of a retired frame, the states that it keeps: the name of the group's snapshot, and the generation."""


class RetiredFrame(NamedTuple):
    """The token of a retired frame, and the name and generation of each state in it."""

    token: str
    states: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The record of a group about its members.

    Parameters
    ----------
    rows : mapping of str to Row, optional
        The members by their names, in an object store. None on a local disk, where the files are the list.
    identity : str
        The identity of the group, by which a member that was copied from another group is recognized.
    number : int
        The number of the last commit.
    pending : mapping of str to PendingStep
        On a local disk, the steps that still publish the committed states of members, by path.
    summaries : bytes
        Summaries of the members, packed by `b2array.format.summary`.
    recent : bytes
        The last commits, packed by `b2array.format.recent`.
    kept : bytes
        The ledger of the group's snapshots, packed by `b2array.format.ledger`.
    retired : mapping
        The states of deleted members that retired frames keep for the snapshots of a local group.
    gone : mapping of str to int
        For the paths of deleted members in an object store, the first number that no chunk file there has ever had. A
        new member at such a path numbers its chunk files from there on.
    unknown : tuple
        Entries of later versions, which every write preserves.

    Examples
    --------
    >>> manifest = Manifest({"a/b": Row("a/b.b2nd")}, number=3)
    >>> Manifest.unpack(manifest.pack()) == manifest
    True
    >>> manifest.members
    {'a/b': 'a/b.b2nd'}
    """

    rows: Mapping[str, Row] | None = None
    identity: str = ""
    number: int = 0
    pending: Mapping[str, PendingStep] = field(default_factory=dict)
    summaries: bytes = b""
    recent: bytes = b""
    kept: bytes = b""
    retired: Retired = field(default_factory=dict)
    gone: Mapping[str, int] = field(default_factory=dict)
    unknown: tuple[tuple[Any, Any], ...] = ()

    @property
    def members(self) -> dict[str, str] | None:
        """The path of each member by its name; None on a local disk, where the files are the list."""
        if self.rows is None:
            return None
        return {name: row.path for name, row in self.rows.items()}

    @property
    def commit(self) -> tuple[str, int]:
        """The name of the last commit: the identity of the group, and the number of the commit."""
        return self.identity, self.number

    def with_summaries(
        self,
        records: Mapping[str, Record | None],
        removed: Collection[str] = (),
        members: Mapping[str, str] | None = None,
    ) -> Self:
        """Return the manifest with other summaries of members.

        Parameters
        ----------
        records : mapping of str to Record
            The new summaries, by path.
        removed : collection of str
            Paths of deleted members, whose summaries are dropped.
        members : mapping of str to str, optional
            The paths of all members, by name. A member without a summary gets an empty one.
        """
        paths = [EMBEDDED if is_embedded(path) else path for path in (members or {}).values()]
        if not self.summaries and not paths:
            return self
        # An empty summary lists the member all the same, for servers that cannot list files.
        summaries: dict[str, Record | None] = dict.fromkeys(paths)
        summaries |= summary.unpack_all(self.summaries)
        summaries |= records
        for path in summaries.keys() & {*removed}:
            del summaries[path]
        return replace(self, summaries=summary.pack_all(summaries))

    def with_commit(self, token: str) -> Self:
        """Return the manifest with the token of its commit in front of the tokens of earlier commits."""
        tokens = recent.with_commit(self.recent, bytes.fromhex(token))
        return replace(self, recent=tokens)

    def follows(self, other: Self) -> bool:
        """Whether the last commit of the other manifest is among the last commits here, so that this one came later."""
        return recent.has_commit(self.recent, other.recent)

    def pack(self) -> bytes:
        """Return the manifest as bytes, with a digest at the end."""
        content: dict[str, Any] = {
            "format": _MAGIC,
            "version": _VERSION,
            "rows": None,
            "identity": self.identity,
            "number": self.number,
            "pending": {path: step.pack() for path, step in self.pending.items()},
        }
        if self.rows is not None:
            content["rows"] = {name: row.pack() for name, row in self.rows.items()}
        # Most manifests have none of the following entries, and are smaller without them.
        if self.summaries:
            content["summaries"] = self.summaries
        if self.recent:
            content["recent"] = self.recent
        if self.kept:
            content["kept"] = self.kept
        if self.retired:
            content["retired"] = {token: [list(state) for state in states] for token, states in self.retired.items()}
        if self.gone:
            content["gone"] = self.gone
        packed: bytes = msgpack.packb(content | dict(self.unknown))
        return seal(packed)

    @classmethod
    def unpack(cls, buf: Buffer) -> Self:
        """Return the manifest that `pack` packed. ChecksumError: it is damaged.

        FormatError: these are other bytes. UnsupportedError: a later version wrote them.
        """
        content = _unpack_content(buf)
        # None means that the files are the list. A manifest without this entry is damaged.
        if "rows" not in content:
            raise FormatError("expected rows in the manifest, found no such entry")
        rows = None
        if content["rows"] is not None:
            rows = {name: Row.unpack(name, row) for name, row in _pop(content, "rows", {}).items()}
        content.pop("rows", None)
        steps = _pop(content, "pending", {}, required=True)
        pending = {path: PendingStep.unpack(path, step) for path, step in steps.items()}
        return cls(
            rows,
            _pop(content, "identity", "", required=True),
            _pop(content, "number", 0, required=True),
            pending,
            _pop(content, "summaries", b""),
            _pop(content, "recent", b""),
            _pop(content, "kept", b""),
            _unpack_retired(_pop(content, "retired", {})),
            _check_gone(_pop(content, "gone", {})),
            tuple(content.items()),
        )


def _unpack_content(buf: Buffer) -> dict[Any, Any]:
    """Check format, version and digest of a manifest, and return its other entries.

    The version comes first: what follows the map in later versions is not known here. FormatError: these are other
    bytes. UnsupportedError: a later version wrote them. ChecksumError: they do not match the digest.
    """
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=len(buf))
    # Keys of wrong types fail the checks of their entries, with errors that name them.
    try:
        unpacker.feed(buf)
        content = unpacker.unpack()
    except _UNREADABLE as error:
        raise FormatError(f"expected a group's manifest, found other bytes ({error})") from None
    if not isinstance(content, dict) or content.pop("format", None) != _MAGIC:
        raise FormatError("expected a group's manifest, found something else")
    _check_version(content.pop("version", None))
    if seal(bytes(buf[: unpacker.tell()])) != buf:
        raise ChecksumError("the manifest of the group is damaged: its bytes do not match the digest at its end")
    return content


def _check_version(version: Any) -> None:
    """Raise FormatError if this is not a version, and UnsupportedError if it is a later one."""
    if type(version) is not int or version < 1:
        raise FormatError(f"expected a manifest of version {_VERSION}, found {version!r}")
    if version > _VERSION:
        raise UnsupportedError(f"expected a manifest of version {_VERSION}, found the later version {version}")


def _pop(
    content: dict[str, Any],
    key: str,
    default: Any,
    *,
    required: bool = False,
) -> Any:
    """Remove an entry from `content`, and return its value, or the default if there is no such entry.

    FormatError: the value has another type than the default, or a `required` entry is missing.
    """
    value = content.pop(key, None if required else default)
    kind = type(default)
    if type(value) is not kind:
        raise FormatError(f"expected {key!r} of type {kind.__name__} in the manifest, found {type(value).__name__}")
    return value


def _check_gone(content: Mapping[Any, Any]) -> Mapping[str, int]:
    """Return the field `gone` of a manifest; FormatError if it is not a mapping of paths to numbers."""
    for path, number in content.items():
        is_number = type(number) is int and number >= 0
        if not is_number or not _is_path(path):
            raise FormatError(f"expected a path and a number in the manifest, found {path!r} and {number!r}")
    return content


def _unpack_retired(content: Mapping[Any, Any]) -> Retired:
    """Return the field `retired` of a manifest, from its packed form; FormatError if it is something else."""
    for token, states in content.items():
        is_list = isinstance(states, list) and all(map(_is_state, states))
        if not is_list or not _is_token(token):
            raise FormatError(f"expected a token and kept states in the manifest, found {token!r} and {states!r}")
    return {token: tuple(map(tuple, states)) for token, states in content.items()}


def _is_state(content: Any) -> bool:
    """Whether this is a state in a retired frame: the name of a snapshot, and a generation."""
    return isinstance(content, list) and [*map(type, content)] == [str, bytes]


def _is_path_of(name: str, path: str) -> bool:
    """Whether a member of this name can have this path."""
    if any(map(is_file_of_group, name.split("/"))):
        return False
    if path == f"{EMBEDDED}/{name}":
        return is_embedded(path)
    return members_among([path]) == {name: path}


def name_of(path: str) -> str:
    """Return the name of the member with a path: the path without its suffix, or without the embedding frame."""
    if is_embedded(path):
        return path.removeprefix(f"{EMBEDDED}/")
    return path.rpartition(".")[0]


def is_attrs(name: str) -> bool:
    """Whether a member of this name holds the attributes of its group."""
    return name.rpartition("/")[2] == ATTRS


def is_embedded(path: object) -> bool:
    """Whether a path stands for a member in the embedding frame."""
    return isinstance(path, str) and path.startswith(f"{EMBEDDED}/") and is_member_name(path[len(EMBEDDED) + 1 :])


def _is_path(path: object) -> bool:
    """Whether a frame with this path is a member; False for members in the embedding frame."""
    return isinstance(path, str) and bool(members_among([path]))


def _is_token(text: object) -> bool:
    """Whether this is a token: 16 hexadecimal digits."""
    return isinstance(text, str) and re.fullmatch(r"[0-9a-f]{16}", text) is not None


def _is_generation(text: str) -> bool:
    """Whether this is a generation as rows and the names of indexes contain it: 32 hexadecimal digits."""
    return re.fullmatch(r"[0-9a-f]{32}", text) is not None
