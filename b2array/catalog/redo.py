"""The pending steps of a local group: compares the frame in a member's place with the step; determines what to do.

One write of the manifest commits the changes of several members. It lists a `PendingStep` for each member. The same
writer, or the next one, takes it later. A writer can take a step any number of times, because `TABLE` decides by the
frame in the member's place. So the table alone determines the outcome if a writer is killed at any moment. Readers use
it as well, and see the new state before it is in its place.

Only the files determine which row of the table counts: a step names states (generations, identities), and never times
or inodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from types import MappingProxyType
from typing import ClassVar, Final

from b2array.catalog.known_manifests import KnownManifest, read_manifest
from b2array.catalog.manifest import Kind, Manifest, PendingStep
from b2array.catalog.owners import ALONE, BucketMember, load, load_member, load_published, matching_state
from b2array.errors import ConflictError, FormatError, LimitError, UnsupportedError
from b2array.format.frame import FINGERPRINT_NBYTES
from b2array.format.frame_header import unpack_header
from b2array.format.state import State
from b2array.frame.revision import Owner, Revision, head_if_unchanged, load_from_header
from b2array.frame.source import FRAME_NAME
from b2array.store.base import MISSING, Head, Store, Version, stale_reader
from b2array.store.spans import Span

__all__ = [
    "TABLE",
    "Action",
    "LocalMember",
    "Occupant",
    "Remembered",
    "Standing",
    "StoreOf",
    "action_of",
    "inspect_place",
    "load_local_member",
    "read_member",
]

StoreOf = Callable[[str], Store]
"""Returns the store of a path in the group."""
Remembered = tuple[State, bytes]
"""A state that b2array wrote, and the bytes of its header: together they tell whether a file still has this state."""

_DAMAGED = "damaged "
_UNREADABLE = (FormatError, LimitError, UnsupportedError)


# The place of a member.


@dataclass(frozen=True, slots=True)
class Occupant:
    """The occupant of a member's place: a frame, a damaged frame, or nothing.

    Parameters
    ----------
    frame : Revision, optional
        The frame, if it can be read.
    state : str
        The name of the present state: the generation of the frame, or the version of a damaged file; "" for an empty
        place.
    lasting : str
        The identity of a frame by b2array, which all changes of the frame preserve. For other frames, the same as
        `state`.
    name : str, optional
        The object with the header; None without a frame.
    version : Version, optional
        The version of that object.
    """

    frame: Revision | None
    state: str = ""
    lasting: str = ""
    name: str | None = None
    version: Version | None = None

    @property
    def is_damaged(self) -> bool:
        """Whether this is a frame that cannot be read."""
        return self.state.startswith(_DAMAGED)


def inspect_place(store: Store, last: Revision | None = None) -> Occupant:
    """Read and return the occupant of a member's place, without regard to pending steps.

    If the frame still has the `last` state, which the caller has read, this does not parse it again. FormatError,
    LimitError or UnsupportedError: bytes that cannot be read are there, but no object with a header.
    """
    try:
        head = None if last is None else _head_of(store, last)
        frame = load_published(store) if last is None or head is None else last
    except MISSING:
        return Occupant(None)
    except _UNREADABLE:
        # A damaged frame has no readable identity: the version of its file names it, so that a step can refer to it.
        names = [FRAME_NAME] if store.is_prefix else ["", FRAME_NAME]
        for name, answer in zip(names, store.head(names, 1), strict=True):
            if isinstance(answer, Head):
                version = (answer.stamp or store.stamp(name)).version
                state = f"{_DAMAGED}{version or ''}"
                return Occupant(None, state, state, name, version)
        raise
    identity = frame.state.annotations.identity
    lasting = f"id {identity.hex()}" if identity else frame.generation
    version = frame.version if head is None else head.version
    return Occupant(frame, frame.generation, lasting, frame.name, version)


def _head_of(store: Store, last: Revision) -> Head | None:
    """Read and return the beginning of a frame if that shows that it still has its `last` state; otherwise None."""
    if not last.header or not last.frame.is_ours:
        return None
    return head_if_unchanged(store, last.frame, last.header)


class Standing(Enum):
    """The relation of the occupant of a member's place to a pending step."""

    BEFORE = auto()
    """The state before the change; also a damaged file, if the step names its version."""
    AFTER = auto()
    """The state after the change."""
    NOTHING = auto()
    """There is no frame."""
    OTHER = auto()
    """Another writer has changed the member since, without the group."""
    DAMAGED = auto()
    """A frame that cannot be read, and that the step does not name."""


def _compare(step: PendingStep, occupant: Occupant) -> Standing:
    """Compare the occupant of a member's place with a step."""
    if occupant.name is None:
        return Standing.NOTHING
    if step.after and occupant.state == step.after:
        return Standing.AFTER
    if step.before in (occupant.state, occupant.lasting):
        return Standing.BEFORE
    return Standing.DAMAGED if occupant.is_damaged else Standing.OTHER


# The table.


class Action(Enum):
    """What a pending step still requires."""

    WRITE = auto()
    """Write the header over the beginning of the file."""
    PUT = auto()
    """Move the staged index or frame to the member's place, in exchange for the old one, if there is one."""
    TAKE_OUT = auto()
    """Move the frame out of its place, and delete it."""
    DONE = auto()
    """Nothing: the step has taken effect."""
    LEAVE = auto()
    """Nothing: another writer has changed or deleted the member since, or the staged files are gone."""

    @property
    def is_pending(self) -> bool:
        """Whether the step still requires a change. Until that change, readers see the state after it as well."""
        return self in (Action.WRITE, Action.PUT, Action.TAKE_OUT)


def _actions(
    patch: Action,
    index: Action,
    frame: Action,
    delete: Action,
) -> Mapping[Kind, Action]:
    """Return a row of `TABLE`: the action for each kind of step."""
    return MappingProxyType({"patch": patch, "index": index, "frame": frame, "delete": delete})


_STAGED, _UNSTAGED = True, False

TABLE: Final[Mapping[tuple[Standing, bool], Mapping[Kind, Action]]] = MappingProxyType(
    {
        #                                    patch         index         frame         delete
        (Standing.BEFORE, _STAGED): _actions(Action.WRITE, Action.PUT, Action.PUT, Action.TAKE_OUT),
        (Standing.BEFORE, _UNSTAGED): _actions(Action.LEAVE, Action.LEAVE, Action.LEAVE, Action.TAKE_OUT),
        (Standing.AFTER, _STAGED): _actions(Action.DONE, Action.DONE, Action.DONE, Action.DONE),
        (Standing.AFTER, _UNSTAGED): _actions(Action.DONE, Action.DONE, Action.DONE, Action.DONE),
        # A writer that cannot swap two names in one step moves the old frame out before it moves the new one in.
        (Standing.NOTHING, _STAGED): _actions(Action.LEAVE, Action.PUT, Action.PUT, Action.DONE),
        # A later commit of only this member has deleted the member, and did not change the steps of the killed writer.
        (Standing.NOTHING, _UNSTAGED): _actions(Action.LEAVE, Action.LEAVE, Action.LEAVE, Action.DONE),
        (Standing.OTHER, _STAGED): _actions(Action.LEAVE, Action.LEAVE, Action.LEAVE, Action.LEAVE),
        (Standing.OTHER, _UNSTAGED): _actions(Action.LEAVE, Action.LEAVE, Action.LEAVE, Action.LEAVE),
        # A power failure interrupted the write of the header: the tail for the new header is in the file already.
        (Standing.DAMAGED, _STAGED): _actions(Action.WRITE, Action.LEAVE, Action.LEAVE, Action.LEAVE),
        (Standing.DAMAGED, _UNSTAGED): _actions(Action.LEAVE, Action.LEAVE, Action.LEAVE, Action.LEAVE),
    }
)
"""The action of a step: by the occupant of the member's place, the existence of the staged file, and the kind."""


def action_of(
    step: PendingStep,
    store_of: StoreOf,
    path: str,
    *,
    store: Store | None = None,
    last: Revision | None = None,
) -> tuple[Occupant, Action]:
    """Read the place of the member at a path; return its occupant, and what the member's step still requires.

    If the action is `LEAVE`, this reads the place again. `store_of` returns the store of a path in the group. `store`
    is the store of the place, if the caller has opened it; `last` is as for `inspect_place`.
    """
    store = store or store_of(path)
    occupant = inspect_place(store, last)
    action = _look_up_action(step, store_of, path, occupant, store)
    if action is Action.LEAVE:
        # Another process may have moved the staged file to the member's place between the two reads.
        occupant = inspect_place(store)
        action = _look_up_action(step, store_of, path, occupant, store)
    return occupant, action


def _look_up_action(step: PendingStep, store_of: StoreOf, path: str, occupant: Occupant, store: Store) -> Action:
    """Look up the action of a step in `TABLE`; look for the staged file only if the action depends on it."""
    standing = _compare(step, occupant)
    row = TABLE[standing, _STAGED]
    # If both rows agree, do not look for the staged file.
    if row == TABLE[standing, _UNSTAGED]:
        return row[step.kind]
    is_staged = _is_staged(step, store_of, path, store)
    return TABLE[standing, is_staged][step.kind]


def _is_staged(step: PendingStep, store_of: StoreOf, path: str, store: Store) -> bool:
    """Read the store: whether the new tail, index or frame of a step is there. `store` is the member's place."""
    if step.kind == "delete":
        return False
    if step.kind == "patch":
        # The new tail ends with the fingerprint of the new state.
        stop = unpack_header(step.header).frame_len
        span = Span("", stop - FINGERPRINT_NBYTES, stop)
        try:
            (end,) = store.read([span], clip=True)
        except (ConflictError, *MISSING):
            # Another file has replaced the frame since it was inspected.
            return False
        return end.hex() == step.after
    aside = store_of(step.aside(path))
    if step.kind == "index":
        return isinstance(aside.head([""], 1)[0], Head)
    return inspect_place(aside).state == step.after


# Readers.


@dataclass(frozen=True, slots=True, eq=False)
class LocalMember:
    """The owner of a local frame while a step of its group's commit is pending: the group.

    Parameters
    ----------
    group : Store
        The group.
    path : str
        The path of the member.
    """

    group: Store
    path: str

    may_move: ClassVar[bool] = True
    lists_revisions: ClassVar[bool] = False

    def load(self, last: Revision, *, even_new: bool = False) -> Revision:
        """Load the state after the pending steps in the manifest; see `b2array.frame.revision.Owner`.

        Raises the errors of `load_local_member` and of `matching_state`.
        """
        if last.at is not None and last.at.packed:
            # A snapshot of the group has packed this state: no ledger of the frame lists it.
            return last
        manifest, _ = read_manifest(self.group, versioned=False)
        current = load_local_member(self.group, manifest, self.path)
        return matching_state(last, current, even_new=even_new)


def load_local_member(
    group: Store,
    manifest: Manifest,
    path: str,
    last: Remembered | None = None,
) -> Revision:
    """Load the state of the member at a path of a local group, as it is after the pending steps in the manifest.

    While a step is pending, the owner of the state is a `LocalMember`. If the member still has its `last` state, this
    does not parse it again. In a group that was copied from an object store, this loads the revision in the member's
    row. FileNotFoundError: there is no such member. ConflictError: other writers have removed what was read.
    """
    if manifest.rows is not None:
        # The group was copied from an object store, and nobody has written to it since.
        member = BucketMember(KnownManifest(group), path.rpartition(".")[0])
        return replace(load_member(member, manifest), owner=ALONE)
    owner = LocalMember(group, path)
    return read_member(group.below, manifest, path, owner=owner, last=last)


def read_member(
    store_of: StoreOf,
    manifest: Manifest,
    path: str,
    *,
    owner: Owner = ALONE,
    last: Remembered | None = None,
) -> Revision:
    """Load the state of the member at a path, as it is after the pending steps in the manifest.

    `store_of` returns the store of a path in the group. If the state is not in the member's place yet, the result has
    this `owner`. If the member still has its `last` state, this does not parse it again. FileNotFoundError: there is no
    such member. ConflictError: other writers have removed what was read.
    """
    step = manifest.pending.get(path)
    store = store_of(path)
    if last is not None and step is None:
        state, header = last
        head = head_if_unchanged(store, state.frame, header)
        if head is not None:
            generation = state.frame.fingerprint.hex()
            return Revision(store, state, 0, head.version, generation, ALONE, head.unique, header)
    if step is not None:
        occupant, action = action_of(step, store_of, path)
        if action is Action.TAKE_OUT:
            raise FileNotFoundError(f"{store.url} was deleted")
        if action.is_pending:
            try:
                staged = _load_staged(store_of, path, step, occupant)
                return replace(staged, owner=owner)
            except (*MISSING, FormatError):
                # If another process has just taken the step, the place has changed, and the code below reads it.
                if inspect_place(store).state == occupant.state:
                    raise stale_reader(store.url) from None
        elif occupant.frame is not None:
            return occupant.frame
    return load(store)


def _load_staged(store_of: StoreOf, path: str, step: PendingStep, occupant: Occupant) -> Revision:
    """Load the state that a member has after its step from the staged files, given the occupant of its place.

    FileNotFoundError, NotADirectoryError or FormatError: these files are gone, because another process has taken the
    step.
    """
    if step.kind == "patch":
        return load_from_header(store_of(path), ALONE, step.header, occupant.version)
    staged = store_of(step.aside(path))
    if step.kind == "index":
        content = b"".join(staged.pieces())
        return load_from_header(store_of(path), ALONE, content, occupant.version)
    frame = load(staged)
    if frame.generation != step.after:
        # Taking the step swaps the frames, so this may be the old one.
        raise FileNotFoundError(f"{staged.url} was published")
    return frame
