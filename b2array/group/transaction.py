"""Several members of a group changed in one commit.

Each member gets its new chunks and its new index where nobody looks for them. Then one write replaces the group's list
of members, which names the new states: that is the commit, and a reader who goes by the list sees all members before it
or all after it. Only then do the members' own frames follow, for readers who open them by themselves. If the writer
does not live to do that, whoever next opens a member for writing does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from b2array.buffers import Buffer
from b2array.engine import snapshot
from b2array.engine.attributes import Layers
from b2array.engine.handle import Handle, Mode
from b2array.engine.snapshot import Snapshot
from b2array.engine.transaction import Transaction
from b2array.errors import B2ArrayError, ConflictError
from b2array.format.frame import Frame
from b2array.format.index import chunk_name
from b2array.group import embedded
from b2array.group.directory import MARK, Directory, beside, mark_of
from b2array.group.manifest import LIST_NAME, MemberList
from b2array.store.base import Mutex, attempts, too_many_conflicts

__all__ = ["Joint"]


class Joint(Directory):
    """The members of a group as a transaction sees them. Changes of theirs wait for `commit`.

    Parameters
    ----------
    base : Directory
        The group. What others commit to its list after this does not show here.
    anew : str, optional
        Beginning of the names of members that the transaction begins without. What is made there takes the place of
        what a transaction that was interrupted may have left.
    """

    def __init__(self, base: Directory, anew: str | None = None) -> None:
        super().__init__(*base.__reduce__()[1])
        self._base = base
        base.refresh()
        base.settle()
        self._known = base._state()
        self._open: dict[str, Handle] = {}
        self._created: dict[str, str] = {}
        self._removed: dict[str, str] = {}
        self._ended = False
        self._mutex = Mutex()
        self.anew = anew is not None
        if anew is not None:
            self.remove({name: path for name, path in self.members().items() if name.startswith(anew)})

    def __reduce__(self) -> tuple[object, ...]:
        raise ValueError("a group with a transaction under way cannot be pickled")

    def _require_open(self) -> None:
        if self._ended:
            raise ConflictError("expected a transaction under way, found that it has ended")

    def open(self, path: str, mode: Mode) -> Handle:
        """Open a member; what is written to it is part of the commit."""
        self._require_open()
        if path in self._created.values() or embedded.embedded(path):
            return super().open(path, mode)
        with self._mutex:
            held = self._open.get(path)
            if held is None:
                held = super().open(path, mode)
                held.enter()
                self._open[path] = held
            return held

    @contextmanager
    def making(self, name: str, path: str, *, overwrite: bool = False) -> Iterator[None]:
        """Hide a member that is made inside the block until the commit."""
        self._require_open()
        if name in self.members():
            raise ValueError(f"a transaction cannot replace the member {name!r}; delete it first, or change it instead")
        if self._check_hidden(path, overwrite=overwrite):
            self.remove_files(path)
        self._hide(path)
        try:
            yield
        except BaseException:
            self._unhide([path])
            raise
        self._created[name] = path
        self.change(name, path)

    def removed(self, name: str) -> str | None:
        """Return the path of a member that goes with the commit, if it is a frame of its own."""
        path = self._removed.get(name)
        return None if path is None or embedded.embedded(path) else path

    def replace(self, name: str, make: Callable[[str], Transaction]) -> Handle | None:
        """Let the commit put another frame in the place of a member that was removed, without moving it.

        Parameters
        ----------
        name : str
        make : callable
            Returns a draft of the new frame for the URL that it gets.

        Returns
        -------
        Handle or None
            With a transaction under way. None if a frame of that kind cannot be there.
        """
        self._require_open()
        path = self._removed[name]
        old = Handle(self.current(self.store_of(path), path), "r+")
        try:
            draft = make(self.address(path))
        except FileExistsError:
            return None
        old.enter(draft)
        self._restore(name, old)
        return old

    def revive(self, name: str) -> Handle | None:
        """Take back that a frame without chunks was removed, but not that its layers were."""
        path = self.removed(name)
        if path is None:
            return None
        held = Handle(self.current(self.store_of(path), path), "r+")
        held.enter()
        Layers(held).clear()
        self._restore(name, held)
        return held

    def _restore(self, name: str, held: Handle) -> None:
        path = self._removed.pop(name)
        self._open[path] = held
        self.change(name, path)

    def _hide(self, path: str) -> None:
        if self.is_local:
            with self.store.lock(LIST_NAME):
                listed, stamp = self.read_list()
                self.write_list(replace(listed, hidden=tuple(dict.fromkeys((*listed.hidden, path)))), stamp)

    def _unhide(self, paths: Iterable[str]) -> None:
        if self.is_local:
            with self.store.lock(LIST_NAME):
                listed, stamp = self.read_list()
                self.write_list(replace(listed, hidden=_without(listed.hidden, paths)), stamp)

    def change(self, name: str = "", path: str = "", *, without: Mapping[str, str] | None = None) -> None:
        """Note for the commit what has come and gone."""
        self._require_open()
        listed, members = self._state()
        come = {name: path} if name else {}
        members = {known: at for known, at in {**members, **come}.items() if known not in (without or {})}
        self._known = listed, dict(sorted(members.items()))

    def remove(self, members: Mapping[str, str]) -> None:
        """Let members be removed by the commit; those made for it go at once."""
        self.change(without=members)
        for name, path in members.items():
            held = self._open.pop(path, None)
            if held is not None:
                _leave(held)
            if name in self._created:
                self._discard([self._created.pop(name)])
            else:
                self._removed[name] = path

    def _discard(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.remove_files(path)
        self._unhide(paths)

    def abort(self) -> None:
        """Forget all changes."""
        self._ended = True
        for held in self._open.values():
            _leave(held)
        if self._created:
            with suppress(OSError, B2ArrayError):
                self._discard([*self._created.values()])

    def commit(self) -> None:
        """Make all changes visible at once.

        Raises
        ------
        ConflictError
            Another writer changed what these changes build on. Nothing has happened then.
        """
        try:
            drafts = {path: draft for path, held in self._open.items() if (draft := _draft(held)).changed}
            if drafts or self._created or self._removed:
                self._commit(dict(sorted(drafts.items())))
        except BaseException:
            if not self._ended:
                self.abort()
            raise
        self._ended = True
        for held in self._open.values():
            if held.in_transaction:
                _leave(held)
        self._base.refresh()

    def _commit(self, drafts: Mapping[str, Transaction]) -> None:
        for _ in attempts(self.store):
            with ExitStack() as locks:
                locks.enter_context(self.store.lock(LIST_NAME))
                listed, stamp = self.read_list()
                self.publish(listed)
                for draft in drafts.values():
                    locks.enter_context(draft.store.lock(draft.name))
                new = self._next(listed)
                token = os.urandom(8).hex()
                try:
                    staged = {path: self._stage(path, draft, new, token) for path, draft in drafts.items()}
                    new = replace(new, pending={path: change for path, (_, change) in staged.items()})
                    self.write_list(new, stamp)
                except BaseException as error:
                    if not self._is_stored(new, error):
                        self._unstage(drafts, token)
                        if isinstance(error, ConflictError) and self.read_list()[1] != stamp:
                            continue
                        raise
                self._known = new, self._state()[1]
                with suppress(OSError, B2ArrayError):  # whoever opens a member for writing tries again
                    self._finish(new, drafts)
                self._move_on(drafts, {path: described for path, (described, _) in staged.items()})
                return
        raise too_many_conflicts(self.store)

    def _is_stored(self, new: MemberList, error: BaseException) -> bool:
        """Whether a list was stored although that raised, as when the answer of a server is lost."""
        try:
            listed, _ = self.read_list()
        except (OSError, B2ArrayError):
            # It may be what counts now. So all that it names has to stay.
            self._ended = True
            for held in self._open.values():
                held.leave(None)
            raise error from None
        return listed == self.stored_form(new)

    def _next(self, listed: MemberList) -> MemberList:
        """Return the list as the commit leaves it, but for the changes of single members."""
        members = listed.members or {}
        kept = {name: path for name, path in members.items() if name not in self._removed}
        if clash := sorted(self._created.keys() & kept.keys()):
            raise ConflictError(f"{self.url}: another writer has made {clash} as well")
        gone = [path for path in self._removed.values() if self.is_local and not embedded.embedded(path)]
        return replace(
            listed,
            members=dict(sorted({**kept, **self._created}.items())),
            ident=listed.ident or os.urandom(8).hex(),
            number=listed.number + 1,
            hidden=(*_without(listed.hidden, self._created.values()), *gone),
            pending={},
        )

    def _stage(self, path: str, draft: Transaction, new: MemberList, token: str) -> tuple[Frame, bytes | str]:
        store = self.store_of(beside(path, token, sparse=draft.sparse))

        def put(pieces: Iterable[Buffer]) -> None:
            store.create("", pieces)

        described, header = draft.prepare((MARK, (new.ident, new.number)), put)
        return described, header or token

    def _unstage(self, drafts: Mapping[str, Transaction], token: str) -> None:
        with suppress(OSError, B2ArrayError):
            for path, draft in drafts.items():
                self.store_of(beside(path, token, sparse=draft.sparse)).delete([""])

    def _finish(self, new: MemberList, drafts: Mapping[str, Transaction]) -> None:
        replaced = {path: self._open[path].snapshot for path, draft in drafts.items() if draft.base is None}
        self.publish(new, locked=drafts.keys())
        for path, old in replaced.items():
            self._remove_chunks(old, drafts[path], (new.ident, new.number))
        self.remove_frames(self._removed)
        listed, stamp = self.read_list()
        if (listed.ident, listed.number) == (new.ident, new.number):
            self.write_list(replace(listed, pending={}, hidden=_without(listed.hidden, self._removed.values())), stamp)

    def _remove_chunks(self, old: Snapshot, draft: Transaction, mark: tuple[str, int]) -> None:
        """Remove the files of a frame, if another one has taken its place."""
        if draft.sparse and mark_of(snapshot.load(draft.store).state) == mark:
            stored = old.frame.offsets[old.frame.offsets >= 0]
            draft.store.delete([chunk_name(number) for number in stored.tolist()])

    def _move_on(self, drafts: Mapping[str, Transaction], frames: Mapping[str, Frame]) -> None:
        for path, draft in drafts.items():
            self._open[path].leave(self.current(draft.store, path))
            draft.published(frames[path])


def _without(paths: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    return tuple(path for path in paths if path not in set(others))


def _draft(held: Handle) -> Transaction:
    source = held.source
    if not isinstance(source, Transaction):
        raise ConflictError(f"{held.url}: expected a transaction under way, found that it has ended")
    return source


def _leave(held: Handle) -> None:
    draft = _draft(held)
    held.leave(None)
    draft.abort()
