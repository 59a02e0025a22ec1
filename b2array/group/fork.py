"""Forks of a group's transaction: handles of the group for workers, whose changes become part of the commit.

A fork shows the members as the transaction had them when it was forked, and its own changes. Each member that it has is
a fork of an array, and waits where forks of arrays do; see `b2array.commit.fork`. A member that the fork makes waits in
its pickle, wherever the group is: nothing is left behind if the worker is killed.
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
from typing import Any, NamedTuple, NoReturn

from b2array.array.described import Attributes
from b2array.codec.header import Special
from b2array.commit.changes import ChangeSet, join_changes
from b2array.commit.draft import Draft
from b2array.commit.fork import Fork, check_related, make_fork_point, prepare_merge, take_over
from b2array.commit.fork_point import ForkPoint, Roster
from b2array.commit.handle import Handle, Mode
from b2array.errors import ConflictError
from b2array.frame.fetch import read_chunks
from b2array.frame.manifest import is_attrs, is_embedded
from b2array.frame.source import Source
from b2array.group.listed import AnyGroup
from b2array.group.local import LocalGroup, NewFrame, copier_of
from b2array.group.members import Members, check_new
from b2array.store.base import Mutex

__all__ = ["Changes", "GroupFork", "draft_of"]


class Changes(ABC):
    """Uncommitted changes to members of a group, in a transaction or in a fork.

    `view` shows the members without the changes.
    """

    def __init__(self, view: AnyGroup) -> None:
        self.view = view
        self._mutex = Mutex()
        self._fork_id = b""
        self._roster = Roster()

    @property
    def url(self) -> str:
        """Where the group is, without secrets."""
        return self.view.url

    @property
    @abstractmethod
    def storage_options(self) -> dict[str, Any]:
        """Options for fsspec, to make new members with."""

    @abstractmethod
    def members(self) -> Members:
        """Return the path of each member by its name, with the changes."""

    @abstractmethod
    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:
        """Open a member; what you write to it is one of the changes."""

    @abstractmethod
    def note_read(self, path: str) -> None:
        """Note that a member was read here: the commit is refused if it has another state by then."""

    @abstractmethod
    def open_unnoted(self, path: str, mode: Mode) -> Handle:
        """Open a member, which does not count as read."""

    @abstractmethod
    def create(self, name: str, suffix: str, new: NewFrame, *, overwrite: bool) -> Handle:
        """Make a member."""

    @abstractmethod
    def remove(self, members: Mapping[str, str], states: Mapping[str, str] = MappingProxyType({})) -> None:
        """Delete members, given their paths by their names."""

    def refresh(self) -> None:
        """Refuse: the changes would be lost."""
        raise ValueError("refresh() inside a transaction would lose its changes")

    # Forks.

    def fork(self, prefix: str) -> GroupFork:
        """Return a fork, which can write the members whose names begin with a prefix."""
        members = self.members()
        below = members.below(prefix.rstrip("/")).values()
        paths = [path for path in below if not (is_embedded(path) or self._is_mounted(path))]
        points = dict(zip(paths, self._prepare_forks(paths), strict=True))
        with self._mutex.held:
            self._fork_id = self._fork_id or os.urandom(16)
            name = os.urandom(16)
            self._roster.created.add(name)
        return GroupFork(_Origin(self._fork_id, self.view, members, points), name)

    def _is_mounted(self, path: str) -> bool:
        """Whether a member belongs to a separate group inside this one."""
        return isinstance(self.view, LocalGroup) and self.view.mount_of(path) is not None

    def _prepare_forks(self, paths: Sequence[str]) -> Iterable[ForkPoint]:
        """Prepare members for forks, and return what forks begin with."""
        return [make_fork_point(draft_of(self, path)) for path in paths]

    def merge(self, workers: Sequence[object]) -> None:
        """Take over the changes of forks; ConflictError if they do not fit together, and nothing has changed then."""
        forks = [_accept(self, worker) for worker in workers]
        news = _choose_new(self, forks)
        # Nothing is taken before everything fits: a half-merged transaction could neither be committed nor merged.
        with ExitStack() as locks:
            for draft, change, rows in _fit_changes(self, forks, locks):
                take_over(draft, change, rows)
        for name, copies in news.items():
            _take_new(self, name, copies)
        paths = {*self.members().values()}
        for path in {path for fork in forks for path in fork.seen} & paths:
            self.note_read(path)
        for fork in forks:
            self._roster.merged |= fork.names
            fork.end()

    def _is_related(self, fork: GroupFork) -> bool:
        """Whether a fork can be merged here: it is a fork of these changes."""
        return fork.transaction == self._fork_id


def draft_of(changes: Changes, path: str) -> Draft:
    """Return the draft with the changes of a member; ConflictError if they were committed or given up."""
    draft = changes.open_unnoted(path, "r+").draft
    if draft is None:
        raise ConflictError(f"{changes.url}: expected a transaction under way, found that it has ended")
    return draft


# Merging.


class NewMember(NamedTuple):
    """A member that a fork has made, and the ending of its path."""

    suffix: str
    handle: Fork


def _accept(changes: Changes, worker: object) -> GroupFork:
    """Return a worker's group if it is a fork that can be merged into the changes; raise what `Group.merge` raises."""
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
    """Return each draft to change, what it takes, and which rows; ConflictError if forks and drafts do not agree.

    The handles of the drafts stay locked until `locks` ends.
    """
    written: dict[str, list[ChangeSet]] = {}
    for fork in forks:
        for path, change in fork.written().items():
            written.setdefault(path, []).append(change)
    paths = {*changes.members().values()}
    fitted = []
    for path, of_forks in sorted(written.items()):
        if path not in paths:
            raise ConflictError(f"{changes.url}: {path} was deleted since the fork, or made since this one")
        locks.enter_context(changes.open_unnoted(path, "r+").mutex.held)
        draft = draft_of(changes, path)
        check_related(draft, of_forks)
        joined = join_changes(of_forks, f"{changes.url}/{path}")
        fitted.append((draft, *prepare_merge(draft, joined)))
    return fitted


def _choose_new(changes: Changes, forks: Sequence[GroupFork]) -> dict[str, list[NewMember]]:
    """Return the members that forks have made and that are to be made here, by name.

    Of arrays one copy is enough; of frames with attributes all count. ConflictError: two of the same name differ, or
    the name excludes another one.
    """
    made: dict[str, list[NewMember]] = {}
    for fork in forks:
        for name, new in fork.made().items():
            made.setdefault(name, []).append(new)
    chosen: dict[str, list[NewMember]] = {}
    names = changes.members().copy()
    for name, copies in made.items():
        is_present = name in names
        handles: list[Handle] = [new.handle for new in copies]
        if is_present:
            handles.append(changes.open(names[name], "r"))
        agree = _attributes_agree if is_attrs(name) else _are_equal
        if not all(agree(one, other) for one, other in combinations(handles, 2)):
            raise ConflictError(f"{changes.url}: {name!r} was made by two forks, or by a fork and after it was made")
        if is_attrs(name):
            chosen[name] = copies
        elif not is_present:
            chosen[name] = copies[:1]
        if not is_present:
            try:
                check_new(name, names, changes.url)
            except (FileExistsError, ValueError) as error:
                raise ConflictError(f"the changes of forks exclude each other: {error}") from None
            names.add(name, name + copies[0].suffix)
    return chosen


def _take_new(changes: Changes, name: str, copies: Sequence[NewMember]) -> None:
    """Make a member as forks have made it, or add their attributes to it."""
    first, path = copies[0], changes.members().get(name)
    if path is None:
        new = copier_of(first.handle, changes.view.storage_options, keeps_layout=True)
        handle = changes.create(name, first.suffix, new, overwrite=True)
    else:
        handle = changes.open(path, "r+")
    if is_attrs(name):
        for copy in copies:
            Attributes(handle).update(Attributes(copy.handle))


def _attributes_agree(one: Handle, other: Handle) -> bool:
    """Whether no attribute has different values in two frames."""
    ours, theirs = one.source.state.attrs(), other.source.state.attrs()
    return all(ours[name] == theirs[name] for name in ours.keys() & theirs.keys())


def _are_equal(one: Handle, other: Handle) -> bool:
    """Whether two new members are the same, as when a task ran twice."""
    if _describe(one.source) != _describe(other.source):
        return False
    return all(map(eq, _read_chunks(one.source), _read_chunks(other.source)))


def _describe(source: Source) -> tuple[Any, ...]:
    """Return everything in a frame except the chunks and their places."""
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
    """A group's transaction as its forks see it; it can be pickled.

    Parameters
    ----------
    id : bytes
        Names the transaction.
    group : AnyGroup
        The group without the changes.
    members : Members
        The members as the transaction had them.
    points : mapping of str to ForkPoint
        What forks of members begin with, by the paths of the members that forks can write.
    """

    id: bytes
    group: AnyGroup
    members: Members
    points: Mapping[str, ForkPoint]


class GroupFork(Changes):
    """The members of a group as a fork shows them, and the changes made through it.

    Parameters
    ----------
    origin : _Origin
        The transaction.
    name : bytes
        Names the fork.
    opened : mapping of str to Fork
        The forks of members that were used or made, by path.
    new : mapping of str to str
        The names of the members that were made, by path.
    seen : collection of str
        The paths of members of the transaction that were opened.
    taken : collection of bytes
        The names of the siblings that were merged into this fork.
    """

    def __init__(
        self,
        origin: _Origin,
        name: bytes,
        opened: Mapping[str, Fork] = {},
        new: Mapping[str, str] = {},
        seen: Collection[str] = (),
        taken: Collection[bytes] = (),
    ) -> None:
        super().__init__(origin.group)
        self.name = name
        self._origin = origin
        self._opened, self._new = dict(opened), dict(new)
        self.seen = {*seen}
        self._roster.merged |= {*taken}
        self._is_merged = False
        self._members = origin.members
        if new:
            self._members = origin.members.copy()
            for path, full in new.items():
                self._members.add(full, path)

    def __reduce__(self) -> tuple[Any, ...]:
        self.require_open()
        # Members that were only looked at would make the pickle long: the origin has them.
        used = self.written().keys() | self._new.keys()
        opened = {path: fork for path, fork in self._opened.items() if path in used}
        return type(self), (self._origin, self.name, opened, self._new, self.seen, self._roster.merged)

    @property
    def transaction(self) -> bytes:
        """The identity of the transaction."""
        return self._origin.id

    @property
    def names(self) -> set[bytes]:
        """The names of the forks whose changes are here: this one, and the siblings that were merged into it."""
        return {self.name, *self._roster.merged}

    def _is_related(self, fork: GroupFork) -> bool:
        """Whether another fork can be merged here: it is a fork of this one, or of the same transaction."""
        return fork.transaction in (self._fork_id, self.transaction)

    @property
    def storage_options(self) -> dict[str, Any]:
        """None: new members are in memory."""
        return {}

    def require_open(self) -> None:
        """Raise ValueError if the fork was merged."""
        if self._is_merged:
            raise ValueError("this fork was merged; use the transaction that has its changes now")

    def written(self) -> dict[str, ChangeSet]:
        """Return what was written or read through the fork, by the paths of members that were there before."""
        changes = {path: fork.freeze() for path, fork in self._opened.items() if path not in self._new}
        return {path: change for path, change in changes.items() if not change.is_empty or change.reads.size}

    def made(self) -> dict[str, NewMember]:
        """Return the members that the fork has made, by name."""
        return {name: NewMember(path[len(name) :], self._opened[path]) for path, name in self._new.items()}

    def end(self) -> None:
        """Refuse any further use."""
        self._is_merged = True
        for fork in self._opened.values():
            fork.end()

    # The group.

    def members(self) -> Members:
        """Return the path of each member by its name."""
        self.require_open()
        return self._members

    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:  # noqa: ARG002
        """Open a member. Members outside of the group that was forked can only be read.

        ValueError: it belongs to a separate group inside this one.
        """
        if isinstance(self.view, LocalGroup):
            self.view.require_own(path)
        self.note_read(path)
        return self.open_unnoted(path, mode)

    def note_read(self, path: str) -> None:
        """Note that a member was read here."""
        if path not in self._new:
            self.seen.add(path)

    def open_unnoted(self, path: str, mode: Mode) -> Handle:  # noqa: ARG002
        """Open a member, which does not count as read."""
        self.require_open()
        with self._mutex.held:
            fork = self._opened.get(path)
            if fork is None:
                point = self._origin.points.get(path)
                if point is None:
                    return self.view.open(path, "r")
                fork = self._opened[path] = Fork(point, self.name)
            return fork

    def create(self, name: str, suffix: str, new: NewFrame, *, overwrite: bool) -> Handle:  # noqa: ARG002
        """Make a member in memory."""
        path = name + suffix
        if name in self.members():
            raise ValueError(f"a fork of a group cannot replace the member {name!r}: do that before you fork")
        draft = new(None, overwrite=False, layout="contiguous" if self.view.is_local else "sparse")
        fork = Fork(make_fork_point(draft), self.name)
        with self._mutex.held:
            self._opened[path], self._new[path] = fork, name
            # Other threads may be going through the members.
            self._members = self._members.copy()
            self._members.add(name, path)
        return fork

    def remove(
        self,
        members: Mapping[str, str],
        states: Mapping[str, str] = MappingProxyType({}),  # noqa: ARG002
    ) -> NoReturn:
        """Refuse: a worker does not know who else needs these members."""
        raise ValueError(f"a fork of a group cannot delete or move {sorted(members)}: do that before you fork")
