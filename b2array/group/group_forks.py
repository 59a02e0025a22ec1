"""Forks of a group's transaction: group handles for workers, whose changes become part of the commit.

A fork shows the members as they were in the transaction when the fork was made, and the changes of the fork. It changes
an existing member through a fork of the array; `b2array.commit.forks` describes where the chunks wait. New members are
part of the fork's pickle in every kind of store, so a killed worker leaves no files of new members.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from operator import eq
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, NoReturn

from b2array.array.described import Attributes
from b2array.array.drafts import Kind
from b2array.catalog.manifest import is_attrs, is_embedded
from b2array.catalog.names_of_members import Members, check_new
from b2array.codec.chunk_header import Special
from b2array.commit.changes import ChangeSet, join_changes
from b2array.commit.draft import Draft
from b2array.commit.fork_point import ForkPoint, Roster
from b2array.commit.forks import Fork, check_related, make_fork_point, prepare_merge, seal_all, sealing, take_over
from b2array.commit.handle import Handle, Mode
from b2array.errors import ConflictError, make_ended_error
from b2array.frame.fetch import read_chunks
from b2array.frame.revision import Revision
from b2array.frame.source import Source
from b2array.group.homes import GroupHome
from b2array.group.new_members import NewFrame, copier_of
from b2array.store.base import Mutex, Store

__all__ = ["NOTHING", "Changes", "GroupFork", "open_draft"]

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Changes(ABC):
    """Uncommitted changes to members of a group: a transaction or a fork.

    Parameters
    ----------
    view : GroupHome
        Shows the members without the changes.

    Attributes
    ----------
    undivided : Mutex
        A change of several steps holds it, so that the commit, or a merge, has all of the steps or none. The first step
        raises the error of changes that have ended.
    """

    def __init__(self, view: GroupHome) -> None:
        self.view = view
        # Two of them, because a change of several steps may wait for threads that open members.
        self._mutex, self.undivided = Mutex(), Mutex()
        # The identity of these changes, as forks know it; empty before the first fork.
        self._id_for_forks = b""
        self._roster = Roster()

    @property
    def url(self) -> str:
        """The URL of the group, without secrets."""
        return self.view.url

    @property
    def store(self) -> Store:
        """The store of the group."""
        return self.view.store

    @property
    @abstractmethod
    def storage_options(self) -> dict[str, Any]:
        """The options for fsspec with which new members are made."""

    @abstractmethod
    def members(self) -> Members:
        """Return the path of each member by its name, with the changes."""

    @abstractmethod
    def open(
        self,
        path: str,
        mode: Mode,
        *,
        lazy: bool = False,
    ) -> Handle:
        """Open a member, and note that it was read. Writes to it become part of the changes."""

    @abstractmethod
    def note_read(self, path: str) -> None:
        """Note that a member was read, so that the commit is refused if another writer changes it first."""

    @abstractmethod
    def open_unnoted(self, path: str, mode: Mode) -> Handle:
        """Open a member without noting that it was read. Writes to it become part of the changes."""

    @abstractmethod
    def create(
        self,
        name: str,
        suffix: str,
        new: NewFrame,
        *,
        overwrite: bool,
    ) -> Handle:
        """Make a member with the draft from `new`, and return a handle to write to it.

        `overwrite` is as for `GroupHome.begin_member`.
        """

    @abstractmethod
    def remove(
        self,
        members: Mapping[str, str],
        states: Mapping[str, Revision] = NOTHING,
    ) -> None:
        """Delete members, given as paths by name; a fork raises ValueError.

        `states` are the states of members that were copied before, by path: the copies must not be out of date.
        """

    def refresh(self) -> None:
        """Raise ValueError: the changes would be lost."""
        raise ValueError("refresh() inside a transaction would lose its changes")

    # Forks.

    def fork(self, prefix: str) -> GroupFork:
        """Prepare members whose names begin with a prefix for forks, and return a fork that can write them.

        This begins a draft of each member, and encodes open chunks. Embedded members, and members of inner groups, can
        only be read through the fork.
        """
        members = self.members().copy()  # later changes of the transaction must not change the fork
        inside = members.below(prefix.rstrip("/"))
        # Embedded members can only be read, and members of inner groups belong to other transactions.
        paths = [path for path in inside.values() if not (is_embedded(path) or _is_mounted(self.view, path))]
        points = dict(zip(paths, self._prepare_forks(paths), strict=True))
        # Several threads may make the first fork; all forks must have the same transaction identity.
        with self._mutex.held:
            self._id_for_forks = self._id_for_forks or os.urandom(16)
            name = os.urandom(16)
            self._roster.created.add(name)
        return GroupFork(_Origin(self._id_for_forks, self.view, members, points), name)

    def _prepare_forks(self, paths: Sequence[str]) -> Iterable[ForkPoint]:
        """Begin drafts of members, encode their open chunks, and return the point from which each fork starts."""
        return [make_fork_point(open_draft(self, path)) for path in paths]

    def merge(self, workers: Sequence[object]) -> None:
        """Take over the changes of forks, and end them. If they conflict, raise ConflictError and take over nothing.

        Members that the forks have read count as read here. Raises TypeError for anything but forks, and ValueError for
        a fork that was merged before, or that is merged into itself.
        """
        forks = [_check_mergeable(self, worker) for worker in workers]
        with sealing(forks), self.undivided.held:
            news = _choose_new_members(self, forks)
            # Check all changes before taking over any: a half-merged transaction would be useless.
            with ExitStack() as locks:
                for draft, change, rows in _fit_changes(self, forks, locks):
                    take_over(draft, change, rows)
            for name, copies in news.items():
                _merge_new_member(self, name, copies)
            # The commit depends on the members that workers have read, except members that were deleted here since the
            # fork.
            paths = {*self.members().values()}
            for path in {path for fork in forks for path in fork.seen} & paths:
                self.note_read(path)
            for fork in forks:
                self._roster.merged |= fork.names
                fork.end()

    def _is_related(self, fork: GroupFork) -> bool:
        """Return whether a fork was made from these changes, and can be merged into them."""
        return fork.transaction == self._id_for_forks


def _is_mounted(view: GroupHome, path: str) -> bool:
    """Return whether a member of the group that `view` shows belongs to an inner group."""
    return view.mount_of(path) is not None


def open_draft(changes: Changes, path: str) -> Draft:
    """Open a member for writing, without noting that it was read, and return its draft, which may be a new one.

    Raises ConflictError if the transaction has ended.
    """
    draft = changes.open_unnoted(path, "r+").draft
    if draft is None:
        raise make_ended_error(changes.url)
    return draft


# Merging.


class NewMember(NamedTuple):
    """A member that a fork has made: the suffix of its path, and its handle."""

    suffix: str
    handle: Fork


def _check_mergeable(changes: Changes, worker: object) -> GroupFork:
    """Return `worker` as a fork; raise unless it can be merged into `changes`. The errors are as for `Group.merge`."""
    if not isinstance(worker, GroupFork):
        raise TypeError("merge() takes forks of this group")
    worker.require_open()
    if worker is changes:
        raise ValueError("a fork cannot be merged into itself: it has its changes already")
    if not changes._is_related(worker):
        raise ConflictError(f"{changes.url}: these forks belong to another transaction, or to one that has ended")
    return worker


def _fit_changes(
    changes: Changes, forks: Sequence[GroupFork], locks: ExitStack
) -> list[tuple[Draft, ChangeSet, list[int]]]:
    """Return each draft to change, the joined change of the forks, and the rows of the chunks in it to take over.

    This encodes open chunks, and begins drafts of members that only forks have changed. The handles of the drafts stay
    locked until `locks` is closed. Raises ConflictError if the forks contradict each other or the drafts.
    """
    written: dict[str, list[ChangeSet]] = {}
    for fork in forks:
        for path, change in fork.freeze_changes().items():
            written.setdefault(path, []).append(change)
    paths = {*changes.members().values()}
    fitted = []
    for path, of_forks in sorted(written.items()):
        if path not in paths:
            raise ConflictError(f"{changes.url}: {path} was deleted since the fork, or made since this one")
        handle = changes.open_unnoted(path, "r+")
        locks.enter_context(handle.mutex.held)
        handle.require_unsealed()  # if this is a fork, another thread may be merging it
        draft = open_draft(changes, path)
        check_related(draft, of_forks)
        joined = join_changes(of_forks, f"{changes.url}/{path}")
        fitted.append((draft, *prepare_merge(draft, joined)))
    return fitted


def _choose_new_members(
    changes: Changes,
    forks: Sequence[GroupFork],
) -> dict[str, list[NewMember]]:
    """Return the copies to take over of each member that forks have made, by name.

    Several forks may have made the same member. One copy of an array is enough; a frame of attributes needs the
    attributes from all forks. To compare several copies of an array, this reads their chunks. Raises ConflictError if
    two copies differ, or if the name excludes another one.
    """
    by_name: dict[str, list[NewMember]] = {}
    for fork in forks:
        for name, new in fork.new_members().items():
            by_name.setdefault(name, []).append(new)
    chosen: dict[str, list[NewMember]] = {}
    members = changes.members().copy()
    for name, copies in by_name.items():
        path = members.get(name)
        handles: list[Handle] = [new.handle for new in copies]
        if path is not None:
            handles.append(changes.open(path, "r"))
        # Forks may set different attributes of the same group; only the values of one attribute must agree.
        agree = _attributes_agree if is_attrs(name) else _are_equal
        if not all(agree(one, other) for one, other in combinations(handles, 2)):
            raise ConflictError(f"{changes.url}: {name!r} was made by two forks, or by a fork and after it was made")
        if is_attrs(name):
            chosen[name] = copies
        elif path is None:
            chosen[name] = copies[:1]
        if path is None:
            try:
                check_new(name, members, changes.url)
            except (FileExistsError, ValueError) as error:
                raise ConflictError(f"the changes of forks exclude each other: {error}") from None
            members.add(name, name + copies[0].suffix)
    return chosen


def _merge_new_member(changes: Changes, name: str, copies: Sequence[NewMember]) -> None:
    """Make a member that forks have made, if it is missing; set the attributes that forks have set.

    An existing frame of attributes is opened for writing, and counts as read.
    """
    first, path = copies[0], changes.members().get(name)
    if path is None:
        # The fork has made it with the layout that the user wants, or that is usual in the place of the group.
        new = copier_of(first.handle, changes.view.storage_options, keeps_layout=True)
        handle = changes.create(name, first.suffix, new, overwrite=True)
    else:
        handle = changes.open(path, "r+")
    if is_attrs(name):
        for copy in copies:
            Attributes(handle).update(Attributes(copy.handle))


def _attributes_agree(one: Handle, other: Handle) -> bool:
    """Return whether no attribute has different values in two frames."""
    ours, theirs = one.source.state.attrs(), other.source.state.attrs()
    return all(ours[name] == theirs[name] for name in ours.keys() & theirs.keys())


def _are_equal(one: Handle, other: Handle) -> bool:
    """Return whether two new members have the same content, because a task ran twice; this reads all their chunks."""
    if _describe(one.source) != _describe(other.source):
        return False
    return all(map(eq, _read_chunks(one.source), _read_chunks(other.source)))


def _describe(source: Source) -> tuple[Any, ...]:
    """Return the properties that must be equal in equal frames, besides the chunks."""
    # Not the whole frame: offsets, identities and times differ in each run of a task.
    frame, notes = source.frame, source.state.annotations
    return (
        frame.frame_type,
        frame.metalayers,
        frame.nbytes,
        frame.typesize,
        frame.chunksize,
        frame.blocksize,
        frame.nchunks,
        source.state.cparams,
        source.state.attrs(),
        notes.fill,
        notes.dims,
        notes.dtype,
    )


def _read_chunks(source: Source) -> Iterator[bytes | Special]:
    """Yield the compressed bytes of each chunk, or its special value."""
    for n in range(source.frame.nchunks):
        place = source.locate(n)
        if isinstance(place, Special):
            yield place
        else:
            (stored,) = read_chunks(source, [n])
            yield bytes(stored.region)


# A fork.


@dataclass(frozen=True, slots=True, eq=False)
class _Origin:
    """The data that a fork takes along from its transaction. It can be pickled.

    Parameters
    ----------
    id : bytes
        The identity of the transaction.
    group : GroupHome
        Shows the members without the changes.
    members : Members
        The members in the transaction at the time of the fork.
    points : mapping of str to ForkPoint
        The points from which forks of members start, by path: these members can be written.
    """

    id: bytes
    group: GroupHome
    members: Members
    points: Mapping[str, ForkPoint]


class GroupFork(Changes):
    """A fork of a group: the members as it shows them, and the changes made through it.

    Parameters
    ----------
    origin : _Origin
        The data that the fork has taken along from the transaction.
    name : bytes
        The identity of the fork.
    opened : mapping of str to Fork
        The forks of members that were used or made in this fork, by path.
    new : mapping of str to str
        The names of members that were made in this fork, by path.
    seen : collection of str
        The paths of the transaction's members that were opened in this fork.
    merged : collection of bytes
        The identities of the siblings that were merged into this fork.
    """

    def __init__(
        self,
        origin: _Origin,
        name: bytes,
        opened: Mapping[str, Fork] = MappingProxyType({}),
        new: Mapping[str, str] = NOTHING,
        seen: Collection[str] = (),
        merged: Collection[bytes] = (),
    ) -> None:
        super().__init__(origin.group)
        self.name = name
        self._origin = origin
        self._opened, self._new = dict(opened), dict(new)
        self.seen = {*seen}
        self._roster.merged |= {*merged}
        # A sealed one is being merged: it takes no more changes.
        self._phase: Literal["open", "sealed", "merged"] = "open"
        self._members = origin.members
        if new:  # in a copy, because forks in one process share the members of their origin
            self._members = origin.members.copy()
            for path, full in new.items():
                self._members.add(full, path)

    def __reduce__(self) -> tuple[Any, ...]:
        """Encode open chunks, and pickle the fork with its changes; raise ValueError if it was merged."""
        with self.undivided.held, self._mutex.held:
            self.require_open()
            # Forks without changes would only make the pickle longer: the origin has their points.
            used = self.freeze_changes().keys() | self._new.keys()
            opened = {path: fork for path, fork in self._opened.items() if path in used}
            state = self._origin, self.name, opened, dict(self._new), {*self.seen}, {*self._roster.merged}
        return type(self), state

    @property
    def transaction(self) -> bytes:
        """The identity of the transaction that was forked."""
        return self._origin.id

    @property
    def names(self) -> set[bytes]:
        """The identities of this fork, and of the siblings that were merged into it."""
        return {self.name, *self._roster.merged}

    def _is_related(self, fork: GroupFork) -> bool:
        """Return whether another fork can be merged into this one: it is a fork of this one, or of the same changes."""
        return fork.transaction in (self._id_for_forks, self.transaction)

    @property
    def storage_options(self) -> dict[str, Any]:
        """No options: new members are made in memory."""
        return {}

    def require_open(self) -> None:
        """Raise ValueError if the fork was merged, or if another thread is merging it."""
        if self._phase == "merged":
            raise ValueError("this fork was merged; use the transaction that has its changes now")
        if self._phase == "sealed":
            raise ValueError("another thread is merging this fork; use the transaction that gets its changes")

    def freeze_changes(self) -> dict[str, ChangeSet]:
        """Encode open chunks; return the changes and reads of members that existed before the fork, by path."""
        written = {}
        for path, fork in self._opened.items():
            if path in self._new:
                continue
            change = fork.freeze()
            if not change.is_empty or change.reads.size:
                written[path] = change
        return written

    def new_members(self) -> dict[str, NewMember]:
        """Return the members that were made in this fork, by name."""
        new = {}
        for path, name in self._new.items():
            new[name] = NewMember(path[len(name) :], self._opened[path])
        return new

    def seal(self) -> None:
        """Wait for changes by other threads, and take no more of them; ValueError if the fork is sealed or merged."""
        with self.undivided.held, self._mutex.held:
            self.require_open()
            self._phase = "sealed"
        # Without the mutexes, which a thread may want that writes to one of the members.
        try:
            seal_all(self._opened.values())
        except BaseException:
            self._phase = "open"
            raise

    def unseal(self) -> None:
        """Take changes again."""
        for fork in self._opened.values():
            fork.unseal()
        if self._phase == "sealed":
            self._phase = "open"

    def end(self) -> None:
        """Make every further use raise ValueError, because the fork was merged."""
        self._phase = "merged"
        for fork in self._opened.values():
            fork.end()

    # Members.

    def members(self) -> Members:
        """Return the path of each member by its name, with the changes; raise ValueError if the fork was merged."""
        self.require_open()
        return self._members

    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:  # noqa: ARG002
        """Open a member, and note that it was read. Members outside the group that was forked can only be read.

        The fork of a member can be written in any `mode`. Raises ValueError if the member belongs to a separate group
        inside this one, or if the fork was merged.
        """
        if _is_mounted(self.view, path):
            self.view.require_own(path)
        self.note_read(path)
        return self.open_unnoted(path, mode)

    def note_read(self, path: str) -> None:
        """Note that a member of the transaction was read in this fork; do nothing for a member made in the fork."""
        if path not in self._new:
            self.seen.add(path)

    def open_unnoted(self, path: str, mode: Mode) -> Handle:  # noqa: ARG002
        """Return the fork of a member, which can be written in any mode and begins at the first use.

        A member that was not prepared for forks is opened for reading. Raises ValueError if this fork of the group was
        merged.
        """
        with self._mutex.held:
            self.require_open()
            fork = self._opened.get(path)
            if fork is None:
                point = self._origin.points.get(path)
                if point is None:
                    return self.view.open(path, "r")
                fork = self._opened[path] = Fork(point, self.name)
            return fork

    def create(self, name: str, suffix: str, new: NewFrame, *, overwrite: bool) -> Handle:  # noqa: ARG002
        """Make a member in memory with the draft from `new`, and return its fork; ValueError if the name is taken."""
        path = name + suffix
        if name in self.members():
            raise ValueError(f"a fork of a group cannot replace the member {name!r}: do that before you fork")
        # Use the usual layout of the store in which the member will be.
        layout: Kind = "contiguous" if self.view.is_local else "sparse"
        draft = new(None, overwrite=False, layout=layout)
        fork = Fork(make_fork_point(draft), self.name)
        with self.undivided.held, self._mutex.held:
            self.require_open()  # another thread may have merged the fork meanwhile
            self._opened[path], self._new[path] = fork, name
            # A copy, because other threads may be iterating over the members.
            self._members = self._members.copy()
            self._members.add(name, path)
        return fork

    def remove(
        self,
        members: Mapping[str, str],
        states: Mapping[str, Revision] = NOTHING,  # noqa: ARG002
    ) -> NoReturn:
        """Raise ValueError: a worker does not know whether other workers need these members."""
        raise ValueError(f"a fork of a group cannot delete or move {sorted(members)}: do that before you fork")
