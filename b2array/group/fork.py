"""Forks of a group's transaction: handles of the group for workers, whose changes become part of the commit.

A fork shows the members as the transaction had them when it was forked, and its own changes. Each member that it has is
a fork of an array, and waits where those do; see `b2array.commit.fork`. A member that the fork makes waits in its
pickle, whatever the place of the group: nothing is left behind if the worker is killed.
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
from typing import Any, NoReturn

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
from b2array.group.local import NewFrame, copy_of
from b2array.group.members import Members, check_new
from b2array.store.base import Mutex

__all__ = ["Changes", "GroupFork"]


class Changes(ABC):
    """Uncommitted changes to members of a group: a transaction's, or a fork's."""

    def __init__(self, directory: AnyGroup) -> None:
        self._view = directory
        self._mutex = Mutex()
        self._fork_id = b""
        self._roster = Roster()

    @property
    def url(self) -> str:
        """Where the group is, without secrets."""
        return self._view.url

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
    def _peek(self, path: str, mode: Mode) -> Handle:
        """Open a member for other reasons than to read it."""

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
        paths = [path for path in below if not is_embedded(path)]
        points = dict(zip(paths, self._prepared(paths), strict=True))
        with self._mutex.held:
            self._fork_id = self._fork_id or os.urandom(16)
            name = os.urandom(16)
            self._roster.created.add(name)
        return GroupFork(_Forked(self._fork_id, self._view, members, points), name)

    def _prepared(self, paths: Sequence[str]) -> Iterable[ForkPoint]:
        """Prepare members for forks."""
        return [make_fork_point(self._draft(path)) for path in paths]

    def merge(self, forks: Sequence[object]) -> None:
        """Take the changes of forks over; ConflictError if they do not fit together, and nothing has changed then."""
        ours: list[GroupFork] = []
        for each in forks:
            if not isinstance(each, GroupFork):
                raise TypeError("merge() takes forks of this group")
            each.require_open()
            if each is self:
                raise ValueError("a fork cannot be merged into itself: it has its changes already")
            if each.transaction not in self._transactions():
                raise ConflictError(f"{self.url}: these forks belong to another transaction, or to one that has ended")
            ours.append(each)
        made: dict[str, list[tuple[str, Fork]]] = {}
        for each in ours:
            for name, new in each.made().items():
                made.setdefault(name, []).append(new)
        news = self._new_members(made)
        with ExitStack() as held:
            for draft, change, rows in self._mergeable(ours, held):
                take_over(draft, change, rows)
        for name, of_forks in news.items():
            self._take_new(name, of_forks)
        there = {*self.members().values()}
        for path in {path for each in ours for path in each.seen} & there:
            self.note_read(path)
        for each in ours:
            self._roster.merged |= each.names
            each.end()

    def _transactions(self) -> set[bytes]:
        """Return the identities of the transactions whose forks can be merged here."""
        return {self._fork_id}

    def _mergeable(self, forks: Sequence[GroupFork], held: ExitStack) -> list[tuple[Draft, ChangeSet, list[int]]]:
        """Return the drafts to change and what each has to take. Their handles stay locked until `held` ends."""
        written: dict[str, list[ChangeSet]] = {}
        for each in forks:
            for path, change in each.written().items():
                written.setdefault(path, []).append(change)
        there = {*self.members().values()}
        found = []
        for path, changes in sorted(written.items()):
            if path not in there:
                raise ConflictError(f"{self.url}: {path} was deleted since the fork, or made since this one")
            held.enter_context(self._peek(path, "r+").mutex.held)
            draft = self._draft(path)
            check_related(draft, changes)
            found.append((draft, *prepare_merge(draft, join_changes(changes, f"{self.url}/{path}"))))
        return found

    def _draft(self, path: str) -> Draft:
        draft = self._peek(path, "r+").draft
        if draft is None:
            raise ConflictError(f"{self.url}: expected a transaction under way, found that it has ended")
        return draft

    def _new_members(self, made: Mapping[str, Sequence[tuple[str, Fork]]]) -> dict[str, list[tuple[str, Fork]]]:
        """Return the members to make, and attributes of groups to set.

        ConflictError if two of the same name are different, or there is another one already.
        """
        found: dict[str, list[tuple[str, Fork]]] = {}
        names = self.members().copy()
        for name, news in made.items():
            alike: list[Handle] = [forked for _, forked in news]
            if name in names:
                alike.append(self.open(names[name], "r"))
            agree = _attributes_agree if is_attrs(name) else _are_equal
            if not all(agree(one, other) for one, other in combinations(alike, 2)):
                raise ConflictError(f"{self.url}: {name!r} was made by two forks, or by a fork and after it was made")
            if name in names:
                if is_attrs(name):
                    found[name] = list(news)
                continue
            try:
                check_new(name, names, self.url)
            except (FileExistsError, ValueError) as error:
                raise ConflictError(f"the changes of forks exclude each other: {error}") from None
            found[name] = list(news) if is_attrs(name) else [news[0]]
            names.add(name, name + news[0][0])
        return found

    def _take_new(self, name: str, news: Sequence[tuple[str, Fork]]) -> None:
        (suffix, first), known = news[0], self.members().get(name)
        if known is None:
            new = copy_of(first, self._view.storage_options, keeps_layout=True)
            handle = self.create(name, suffix, new, overwrite=True)
        else:
            handle = self.open(known, "r+")
        if is_attrs(name):
            for _, forked in news:
                Attributes(handle).update(Attributes(forked))


def _attributes_agree(one: Handle, other: Handle) -> bool:
    """Whether no attribute has different values in two frames."""
    ours, theirs = one.source.state.attrs(), other.source.state.attrs()
    return all(ours[name] == theirs[name] for name in ours.keys() & theirs.keys())


def _are_equal(one: Handle, other: Handle) -> bool:
    """Whether two new members are the same, as of a task that ran twice."""
    return _said(one.source) == _said(other.source) and all(map(eq, _chunks(one.source), _chunks(other.source)))


def _said(source: Source) -> tuple[Any, ...]:
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


def _chunks(source: Source) -> Iterator[bytes | Special]:
    for n in range(source.frame.nchunks):
        place = source.locate(n)
        yield place if isinstance(place, Special) else bytes(next(read_chunks(source, [n])).region)


@dataclass(frozen=True, slots=True, eq=False)
class _Forked:
    """A group's transaction as its forks see it; it can be pickled.

    `id` names the transaction. `arrays` has the members that forks can write, by path.
    """

    id: bytes
    directory: AnyGroup
    members: Members
    arrays: Mapping[str, ForkPoint]


class GroupFork(Changes):
    """The members of a group as a fork shows them, and the changes made through it.

    `opened` are the forks of members that were used, by path; among them are the members that the fork has made, whose
    names are in `new`. `seen` are the paths of members of the transaction that were opened.
    """

    def __init__(
        self,
        forked: _Forked,
        name: bytes,
        opened: Mapping[str, Fork] = {},
        new: Mapping[str, str] = {},
        seen: Collection[str] = (),
        taken: Collection[bytes] = (),
    ) -> None:
        super().__init__(forked.directory)
        self.name = name
        self._forked = forked
        self._opened, self._new = dict(opened), dict(new)
        self.seen = {*seen}
        self._roster.merged |= {*taken}
        self._is_merged = False
        self._members = forked.members
        if new:
            self._members = forked.members.copy()
            for path, full in new.items():
                self._members.add(full, path)

    def __reduce__(self) -> tuple[Any, ...]:
        self.require_open()
        used = self.written()
        opened = {path: each for path, each in self._opened.items() if path in used or path in self._new}
        return type(self), (self._forked, self.name, opened, self._new, self.seen, self._roster.merged)

    @property
    def transaction(self) -> bytes:
        """The identity of the transaction."""
        return self._forked.id

    @property
    def names(self) -> set[bytes]:
        """The names of the forks whose changes are here: this one, and the siblings that were merged into it."""
        return {self.name, *self._roster.merged}

    def _transactions(self) -> set[bytes]:
        """Return the identities of the transactions whose forks can be merged here: siblings have the same one."""
        return {self._fork_id, self.transaction}

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
        changes = {path: each.freeze() for path, each in self._opened.items() if path not in self._new}
        return {path: change for path, change in changes.items() if not change.is_empty or change.reads.size}

    def made(self) -> dict[str, tuple[str, Fork]]:
        """Return the members that the fork has made, by name, and the endings of their paths."""
        return {name: (path[len(name) :], self._opened[path]) for path, name in self._new.items()}

    def end(self) -> None:
        """Refuse any further use."""
        self._is_merged = True
        for each in self._opened.values():
            each.end()

    # The group.

    def members(self) -> Members:
        """Return the path of each member by its name."""
        self.require_open()
        return self._members

    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:  # noqa: ARG002
        """Open a member. One outside of the group that was forked can only be read."""
        self.note_read(path)
        return self._peek(path, mode)

    def note_read(self, path: str) -> None:
        """Note that a member was read here."""
        if path not in self._new:
            self.seen.add(path)

    def _peek(self, path: str, mode: Mode) -> Handle:  # noqa: ARG002
        self.require_open()
        with self._mutex.held:
            known = self._opened.get(path)
            if known is None:
                point = self._forked.arrays.get(path)
                if point is None:
                    return self._view.open(path, "r")
                known = self._opened[path] = Fork(point, self.name)
            return known

    def create(self, name: str, suffix: str, new: NewFrame, *, overwrite: bool) -> Handle:  # noqa: ARG002
        """Make a member in memory."""
        path = name + suffix
        if name in self.members():
            raise ValueError(f"a fork of a group cannot replace the member {name!r}: do that before you fork")
        draft = new(None, overwrite=False, layout="contiguous" if self._view.is_local else "sparse")
        made = Fork(make_fork_point(draft), self.name)
        with self._mutex.held:
            self._opened[path], self._new[path] = made, name
            self._members = self._members.copy()
            self._members.add(name, path)
        return made

    def remove(
        self,
        members: Mapping[str, str],
        states: Mapping[str, str] = MappingProxyType({}),  # noqa: ARG002
    ) -> NoReturn:
        """Refuse: a worker does not know who else needs these members."""
        raise ValueError(f"a fork of a group cannot delete or move {sorted(members)}: do that before you fork")
