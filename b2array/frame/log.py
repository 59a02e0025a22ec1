"""The log of a local group: what is in the place of a member, and what its entry says must happen there.

One write of the manifest commits the changes of several members. Its log has an `Entry` for each, which takes effect
later, by its writer or by the next one. An entry can be applied again and again, because `TABLE` decides by what is
found in the member's place. So the table alone tells what a kill at any moment leaves, and readers decide by it as
well: they see the new state before it is in its place.

The files tell which row of the table counts, and nothing else does: an entry names states (revisions, identities), and
never times or inodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from b2array.errors import FormatError, LimitError, UnsupportedError
from b2array.format.frame import FINGERPRINT_NBYTES
from b2array.format.header import unpack_header
from b2array.frame import snapshot
from b2array.frame.manifest import Entry, Kind, Manifest
from b2array.frame.snapshot import Snapshot
from b2array.frame.source import FRAME_NAME
from b2array.store.base import MISSING, Head, Store, Version, stale_reader
from b2array.store.spans import Span

__all__ = ["TABLE", "Action", "Occupant", "Standing", "StoreOf", "action_of", "inspect_place", "read_member"]

StoreOf = Callable[[str], Store]
"""Gives the store of a path in the group."""

_DAMAGED = "damaged "
_UNREADABLE = (FormatError, LimitError, UnsupportedError)


# What is there.


@dataclass(frozen=True, slots=True)
class Occupant:
    """What is in the place of a member: a frame, a damaged frame, or nothing.

    Parameters
    ----------
    frame : Snapshot, optional
        The frame, if it can be read.
    state : str
        Names the present state: a frame's revision, the version of a damaged file, or "" for nothing.
    lasting : str
        Stays the same when a frame is changed, if b2array made it: its identity. Otherwise the same as `state`.
    name : str, optional
        The object with the header; None if there is no frame.
    version : Version, optional
        The version of that object.
    """

    frame: Snapshot | None
    state: str = ""
    lasting: str = ""
    name: str | None = None
    version: Version | None = None

    @property
    def is_damaged(self) -> bool:
        """Whether this is a frame that cannot be read."""
        return self.state.startswith(_DAMAGED)


def inspect_place(store: Store) -> Occupant:
    """Look at what the store of a member holds itself, whatever the log says."""
    try:
        frame = snapshot.load_published(store)
    except MISSING:
        return Occupant(None)
    except _UNREADABLE:
        names = [FRAME_NAME] if store.is_prefix else ["", FRAME_NAME]
        for name, head in zip(names, store.head(names, 1), strict=True):
            if isinstance(head, Head):
                version = (head.stamp or store.stamp(name)).version
                state = f"{_DAMAGED}{version or ''}"
                return Occupant(None, state, state, name, version)
        raise
    identity = frame.state.annotations.identity
    lasting = f"id {identity.hex()}" if identity else frame.generation
    return Occupant(frame, frame.generation, lasting, frame.name, frame.version)


class Standing(Enum):
    """How what is found in the place of a member relates to an entry of the log."""

    BEFORE = auto()
    """The state that goes; a damaged file counts, if the entry names its version."""
    AFTER = auto()
    """The state that comes."""
    NOTHING = auto()
    """There is no frame."""
    OTHER = auto()
    """Somebody has changed the member since, by other means."""
    DAMAGED = auto()
    """A frame that cannot be read, and that the entry does not name."""


def _standing(entry: Entry, there: Occupant) -> Standing:
    if there.name is None:
        return Standing.NOTHING
    if entry.after and there.state == entry.after:
        return Standing.AFTER
    if entry.before in (there.state, there.lasting):
        return Standing.BEFORE
    return Standing.DAMAGED if there.is_damaged else Standing.OTHER


# What must happen.


class Action(Enum):
    """What an entry still has to do."""

    WRITE = auto()
    """Write the header over the beginning of the file."""
    PUT = auto()
    """Let the staged index or frame take the place of the one that goes, if there is one."""
    TAKE_OUT = auto()
    """Move the frame out of its place, and delete it."""
    DONE = auto()
    """Nothing: the entry has taken effect."""
    LEAVE = auto()
    """Nothing: another writer has changed or deleted the member since, or the staged files are gone."""

    @property
    def is_pending(self) -> bool:
        """Whether the entry has still to change something. Until then, readers see the state that it brings."""
        return self in (Action.WRITE, Action.PUT, Action.TAKE_OUT)


def _actions(patch: Action, index: Action, frame: Action, delete: Action) -> Mapping[Kind, Action]:
    return MappingProxyType({"patch": patch, "index": index, "frame": frame, "delete": delete})


_STAGED, _UNSTAGED = True, False

TABLE: Final[Mapping[tuple[Standing, bool], Mapping[Kind, Action]]] = MappingProxyType(
    {
        #                                    patch         index         frame         delete
        (Standing.BEFORE, _STAGED): _actions(Action.WRITE, Action.PUT, Action.PUT, Action.TAKE_OUT),
        (Standing.BEFORE, _UNSTAGED): _actions(Action.LEAVE, Action.LEAVE, Action.LEAVE, Action.TAKE_OUT),
        (Standing.AFTER, _STAGED): _actions(Action.DONE, Action.DONE, Action.DONE, Action.DONE),
        (Standing.AFTER, _UNSTAGED): _actions(Action.DONE, Action.DONE, Action.DONE, Action.DONE),
        # A writer that cannot swap two names in one step takes the old frame out before it puts the new one.
        (Standing.NOTHING, _STAGED): _actions(Action.LEAVE, Action.PUT, Action.PUT, Action.DONE),
        # A later commit of one step has deleted the member, and leaves the log of a killed writer as it is.
        (Standing.NOTHING, _UNSTAGED): _actions(Action.LEAVE, Action.LEAVE, Action.LEAVE, Action.DONE),
        (Standing.OTHER, _STAGED): _actions(Action.LEAVE, Action.LEAVE, Action.LEAVE, Action.LEAVE),
        (Standing.OTHER, _UNSTAGED): _actions(Action.LEAVE, Action.LEAVE, Action.LEAVE, Action.LEAVE),
        # The power failed while the header was written: after it lies the tail that belongs to it.
        (Standing.DAMAGED, _STAGED): _actions(Action.WRITE, Action.LEAVE, Action.LEAVE, Action.LEAVE),
        (Standing.DAMAGED, _UNSTAGED): _actions(Action.LEAVE, Action.LEAVE, Action.LEAVE, Action.LEAVE),
    }
)
"""The action of an entry, by the frame in the member's place, by whether the staged file still exists, and by kind."""


def action_of(entry: Entry, store_of: StoreOf, path: str) -> tuple[Occupant, Action]:
    """Look at the place of a member, and say what its entry still has to do there."""
    there = inspect_place(store_of(path))
    action = _decide(entry, store_of, path, there)
    if action is Action.LEAVE:
        # The staged file may have taken its place between the two looks.
        there = inspect_place(store_of(path))
        action = _decide(entry, store_of, path, there)
    return there, action


def _decide(entry: Entry, store_of: StoreOf, path: str, there: Occupant) -> Action:
    standing = _standing(entry, there)
    row = TABLE[standing, _STAGED]
    if row == TABLE[standing, _UNSTAGED]:
        return row[entry.kind]
    return TABLE[standing, _is_staged(entry, store_of, path)][entry.kind]


def _is_staged(entry: Entry, store_of: StoreOf, path: str) -> bool:
    """Whether what an entry brings waits for it."""
    if entry.kind == "delete":
        return False
    if entry.kind == "patch":
        stop = unpack_header(entry.header).frame_len
        try:
            (end,) = store_of(path).read([Span("", stop - FINGERPRINT_NBYTES, stop)], clip=True)
        except MISSING:
            return False
        return end.hex() == entry.after
    aside = store_of(entry.aside(path))
    if entry.kind == "index":
        return isinstance(aside.head([""], 1)[0], Head)
    return inspect_place(aside).state == entry.after


# Readers.


def read_member(
    store_of: StoreOf,
    manifest: Manifest,
    path: str,
    *,
    again: Callable[..., Snapshot] | None = None,
) -> Snapshot:
    """Return the state of a member by the manifest; FileNotFoundError if there is no such member.

    `again` will read a state anew that is not in its place yet.
    """
    entry = manifest.log.get(path)
    store = store_of(path)
    if entry is not None:
        there, action = action_of(entry, store_of, path)
        if action is Action.TAKE_OUT:
            raise FileNotFoundError(f"{store.url} was deleted")
        if action.is_pending:
            try:
                return replace(_load_staged(store_of, path, entry, there), again=again)
            except (*MISSING, FormatError):
                # Another process has just applied the entry.
                if inspect_place(store).state == there.state:
                    raise stale_reader(store.url) from None
        elif there.frame is not None:
            return there.frame
    return snapshot.load(store)


def _load_staged(store_of: StoreOf, path: str, entry: Entry, there: Occupant) -> Snapshot:
    """Return the state that an entry has for a member."""
    if entry.kind == "patch":
        return snapshot.load_from_header(store_of(path), entry.header, there.version)
    staged = store_of(entry.aside(path))
    if entry.kind == "index":
        return snapshot.load_from_header(store_of(path), b"".join(staged.pieces()), there.version)
    frame = snapshot.load(staged)
    if frame.generation != entry.after:
        # Applying the entry swaps the frames, so the old one may be here.
        raise FileNotFoundError(f"{staged.url} was applied")
    return frame
