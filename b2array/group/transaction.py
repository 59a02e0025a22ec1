"""Several members of a group changed in one commit.

Each changed member gets its new chunks and a new frame in places that no reader looks at.
New members are written at their final paths; until the commit the manifest hides them, or does not name them.
Then one write replaces the manifest, and that write is the commit.
The new manifest lists the members after the transaction and has a redo log, with an entry for each changed member.
Readers who open the group read the members through the redo log, so they see all of the transaction or nothing of it.
Next the writer applies the redo log, so that readers who open members directly see the changes, and removes what the
transaction deleted.
Last it clears the redo log.
A writer who dies before the commit leaves files that no reader finds; one who dies later leaves a redo log.
The next writer applies that redo log before it does anything else.
Other writers wait for the locks of local files; object stores replace the manifest only if it is the one that was read.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple

from b2array.array.drafts import Kind
from b2array.buffers import Buffer
from b2array.engine import snapshot
from b2array.engine.handle import Handle, Mode
from b2array.engine.snapshot import Snapshot
from b2array.engine.transaction import Transaction as MemberTransaction
from b2array.errors import B2ArrayError, ConflictError, FormatError, LimitError, UnsupportedError
from b2array.format.frame import Frame
from b2array.format.header import FrameType
from b2array.format.index import chunk_name
from b2array.group import redo
from b2array.group.directory import Directory, NewFrame, record_of
from b2array.group.manifest import ARRAY, MANIFEST, OTHER, Manifest, check_new, is_embedded, staged_path
from b2array.store.base import Mutex, Stamp, attempts, may_still_happen, too_many_conflicts

__all__ = ["Transaction"]


class _Changed(NamedTuple):
    """A member that the transaction changes, and the changes."""

    handle: Handle
    draft: MemberTransaction

    def leave(self) -> None:
        """Forget the changes."""
        self.handle.leave(None)
        self.draft.abort()


class Transaction:
    """Changes to members of a group that wait for `commit`. They do not show what others commit meanwhile.

    `replacing` begins the names of members to delete first. New members then also replace files that an interrupted
    transaction has left.
    """

    def __init__(self, directory: Directory, replacing: str | None = None) -> None:
        directory.refresh()
        directory.recover()
        self._directory = directory
        self._view = directory.copy()
        self._changed: dict[str, _Changed] = {}  # by path
        self._created: dict[str, str] = {}  # paths by names
        self._handles: dict[str, Handle] = {}  # of those, by path
        self._removed: dict[str, str] = {}
        self._older: set[str] = set()  # paths of frames that would appear in their place
        self._ended = False
        self._overtaken = False  # whether the transaction happened, and another writer committed on top of it
        self._mutex = Mutex()
        self._overwrite = replacing is not None
        if replacing is not None:
            self.remove({name: path for name, path in self.members().items() if name.startswith(replacing)})

    def __reduce__(self) -> tuple[Any, ...]:
        raise ValueError("a group with a transaction under way cannot be pickled")

    @property
    def url(self) -> str:
        """Where the group is, without secrets."""
        return self._view.url

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options for fsspec."""
        return self._view.storage_options

    def members(self) -> dict[str, str]:
        """Return the path of each member by its name, as the transaction leaves them."""
        return self._view.members()

    def refresh(self) -> None:
        """Refuse: the changes would be lost."""
        raise ValueError("refresh() inside a transaction would lose its changes")

    def _require_open(self) -> None:
        if self._ended:
            raise ConflictError("expected a transaction under way, found that it has ended")

    def _show(self, members: Mapping[str, str]) -> None:
        self._view.show(self._view.manifest, members)

    # Changes.

    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:  # noqa: ARG002
        """Open a member; what you write to it is part of the commit."""
        self._require_open()
        if path in self._created.values() and mode == "r+":
            return self._handles[path]
        if path in self._created.values() or is_embedded(path):
            return self._view.open(path, mode)
        with self._mutex.held:
            if path not in self._changed:
                handle = Handle(self._view.current(path), mode)
                if mode == "r":
                    return handle
                self._changed[path] = _Changed(handle, handle.enter())
            return self._changed[path].handle

    def create(self, name: str, suffix: str, new: NewFrame, *, overwrite: bool) -> Handle:
        """Make a member, which appears with the commit. It may replace one that was deleted."""
        self._require_open()
        if name in self.members():
            raise ValueError(f"a transaction cannot replace the member {name!r}; delete it first, or change it instead")
        check_new(name, self.members(), self.url)
        path = self._removed.get(name, "")
        if path and not is_embedded(path):
            if (handle := self._replaced(path, new)) is not None:
                del self._removed[name]
                self._show({**self.members(), name: path})
                return handle
            suffix = OTHER if path.endswith(ARRAY) else ARRAY
        path = name + suffix
        handle = self._made(path, new, overwrite=overwrite or self._overwrite)
        self._created[name] = path
        self._show({**self.members(), name: path})
        return handle

    def _replaced(self, path: str, new: NewFrame) -> Handle | None:
        """Let the commit replace a frame by a new one of the same kind; None if the kinds differ."""
        try:
            handle = Handle(self._view.current(path), "r+")
        except (FormatError, LimitError, UnsupportedError):  # it may be damaged
            return None
        kind: Kind = "sparse" if handle.frame.frame_type == FrameType.SPARSE else "contiguous"
        try:
            draft = new(self._view.address(path), overwrite=True, layout=kind)
        except FileExistsError:
            return None
        if draft.sparse != (kind == "sparse"):
            draft.abort()
            return None
        self._changed[path] = _Changed(handle, handle.enter(draft))
        return handle

    def _made(self, path: str, new: NewFrame, *, overwrite: bool) -> Handle:
        """Make a frame at its final path. Readers do not find it before the commit."""
        view = self._view
        manifest, _ = view.read()
        if view.is_local and path in manifest.hidden:
            if not overwrite:
                raise view.occupied(path)
            view.remove_files(path)
        # Do not replace what others have committed since this transaction began.
        listed = view.is_local or path in (manifest.members or {}).values()
        replaceable = (overwrite and not listed) or path in self._older
        try:
            if view.is_local:
                view.update(lambda found: found.hiding(path))
            self._handles[path] = Handle(new(view.address(path), overwrite=replaceable).commit(), "r+")
            return self._handles[path]
        except BaseException:
            self._reveal([path])
            raise

    def _reveal(self, paths: Collection[str]) -> None:
        if self._view.is_local:
            self._view.update(lambda found: found.revealing(paths))

    def remove(self, members: Mapping[str, str]) -> None:
        """Let the commit delete members; delete new ones at once."""
        self._require_open()
        self._show({name: path for name, path in self.members().items() if name not in members})
        self._older |= self._view.older({name: path for name, path in members.items() if name not in self._created})
        for name, path in members.items():
            if path in self._changed:
                self._changed.pop(path).leave()
            if name in self._created:
                self._handles.pop(path)
                self._discard([self._created.pop(name)])
            else:
                self._removed[name] = path

    def restore(self, members: Mapping[str, str]) -> None:
        """Keep members after all that `remove` took away, and that the transaction has not changed before."""
        self._removed = {name: path for name, path in self._removed.items() if name not in members}
        self._show({**self.members(), **members})

    def _discard(self, paths: Collection[str]) -> None:
        for path in paths:
            self._view.remove_files(path)
        self._reveal(paths)

    # The end.

    def abort(self) -> None:
        """Forget all changes."""
        self._ended = True
        for each in self._changed.values():
            each.leave()
        if self._created:
            with suppress(OSError, B2ArrayError):
                self._discard([*self._created.values()])

    def commit(self) -> None:
        """Make all changes visible at once, or none: ConflictError if another writer changed what they build on."""
        self._require_open()
        changed = {path: each for path, each in sorted(self._changed.items()) if each.draft.changed}
        try:
            if changed or self._created or self._removed:
                self._commit(changed)
        except BaseException:
            if not self._ended:
                self.abort()
            raise
        finally:
            self._directory.refresh()
        self._ended = True
        for path, each in self._changed.items():
            if path not in changed:
                each.leave()

    def _commit(self, changed: Mapping[str, _Changed]) -> None:
        view = self._view
        for each in changed.values():
            each.draft.flush()  # before taking the locks, because it takes long
        for _ in attempts(view.store):
            locks: list[AbstractContextManager[object]] = []
            # One call of C code, which Ctrl-C does not interrupt. A lock left behind would make this process wait.
            unlock: Callable[[], object] = partial(deque, map(methodcaller("__exit__", None, None, None), locks), 0)
            with view.store.lock(MANIFEST):
                try:
                    if self._attempt(changed, locks):
                        return
                finally:
                    unlock()
        raise too_many_conflicts(view.store)

    def _attempt(self, changed: Mapping[str, _Changed], locks: list[AbstractContextManager[object]]) -> bool:
        """Commit on top of what the manifest says now, and return True; or False if another writer was faster.

        The caller holds the lock of the manifest, and releases those that are added to `locks`.
        """
        view = self._view
        before, stamp = view.read()
        view.apply(before)
        if view.is_local:  # in memory, the lock of the manifest excludes all writers
            locks.extend(each.draft.store.lock(each.draft.name) for each in changed.values())
        token = os.urandom(8).hex()
        after = self._after(before)
        after = after if view.store.guarantee == "lock" else after.with_commit(token)
        frames: dict[str, Frame] = {}
        asked = False
        try:
            after = replace(after, redo=self._prepare(changed, after, token, frames))
            for path in self._created.values():
                view.store_of(path).force()
            asked = True
            view.write(after, stamp)
        except BaseException as error:
            if not self._happened(after, stamp, error, late=asked and may_still_happen(view.store, error)):
                self._unstage(changed, token)
                if isinstance(error, ConflictError) and view.read()[1] != stamp:
                    return False
                raise
        # From here on the changes are committed; what fails now is left to the next writer.
        self._ended = True
        view.show(after, self.members())
        with suppress(OSError, B2ArrayError):
            try:
                if not self._overtaken:  # otherwise another writer has done that
                    self._apply(after, changed)
            finally:
                states = self._move_on(changed, frames)
            self._clear_log(after, states)
        return True

    def _after(self, before: Manifest) -> Manifest:
        """Return the manifest after the transaction, still without its redo log."""
        members = {name: path for name, path in (before.members or {}).items() if name not in self._removed}
        others = {*self._view.listed(before)} - {*self._removed} if self._created else set()
        if clash := sorted(self._created.keys() & others):
            raise ConflictError(f"{self.url}: another writer has made {clash} as well")
        if self._view.is_local and (gone := {*self._created.values()} - {*before.hidden}):
            raise ConflictError(f"{self.url}: somebody removed {sorted(gone)} before the commit that needs them")
        for name in self._created:
            try:
                check_new(name, others, self.url)
            except (FileExistsError, ValueError) as error:
                raise ConflictError(f"another writer was faster: {error}") from None
        removed = (*self._removed.values(), *sorted(self._older - {*self._created.values(), *self._changed}))
        files = [path for path in removed if not is_embedded(path)]
        after = replace(
            before.applied().revealing(self._created.values()),
            members=dict(sorted({**members, **self._created}.items())),
            identity=before.identity or os.urandom(8).hex(),
            number=before.number + 1,
            removed=removed,
        )
        # The files are not yet what the summaries describe.
        after = after.with_summaries({}, {*files, *self._changed})
        return replace(after, hidden=(*after.hidden, *files)) if self._view.is_local else after

    def _prepare(
        self, changed: Mapping[str, _Changed], after: Manifest, token: str, frames: dict[str, Frame]
    ) -> dict[str, bytes | str]:
        """Stage the new frames, collect what they hold, and return the redo log."""
        log: dict[str, bytes | str] = {}
        for path, (_, draft) in changed.items():
            staged = self._view.store_of(staged_path(path, token, sparse=draft.sparse))

            def put(pieces: Iterable[Buffer], staged: Any = staged) -> None:
                staged.create("", pieces)
                staged.force()

            frames[path], header = draft.prepare((redo.COMMIT_KEY, after.commit), put)
            log[path] = header or token
        return log

    def _unstage(self, changed: Mapping[str, _Changed], token: str) -> None:
        with suppress(OSError, B2ArrayError):
            for path, (_, draft) in changed.items():
                self._view.store_of(staged_path(path, token, sparse=draft.sparse)).delete([""])

    def _happened(self, after: Manifest, stamp: Stamp | None, error: BaseException, *, late: bool) -> bool:
        """Whether the manifest was replaced despite an error, as when a server's answer is lost.

        Raises `error` if that is unknown, or if it may still be replaced (`late`). Everything then stays where it is,
        as the manifest may refer to it.
        """
        with suppress(OSError, B2ArrayError):
            if self._view.holds(after):
                return True
            self._overtaken = self._view.read()[0].follows(after)
            if self._overtaken:
                return True
            if isinstance(error, ConflictError) or (self._view.read()[1] == stamp and not late):
                return False
        self._ended = True
        for each in self._changed.values():
            each.handle.leave(None)
        raise error

    def _apply(self, after: Manifest, changed: Mapping[str, _Changed]) -> None:
        """Make the files agree with the manifest."""
        view = self._view
        replaced = {path: each.handle.snapshot for path, each in changed.items() if each.draft.base is None}
        view.apply(after, locked=changed.keys())
        for path, old in replaced.items():
            draft = changed[path].draft
            if draft.sparse and redo.commit_of(snapshot.load(draft.store).state) == after.commit:
                numbers = old.frame.offsets[old.frame.offsets >= 0].tolist()
                draft.store.delete([chunk_name(number) for number in numbers])

    def _clear_log(self, after: Manifest, states: Mapping[str, Snapshot]) -> None:
        """Replace the redo log by summaries of what was changed."""
        view = self._view
        now, stamp = view.read()
        if now.commit == after.commit:
            records = {path: record_of(held) for path, held in states.items()}
            records |= {path: record_of(each.snapshot) for path, each in self._handles.items()}
            view.write(now.applied().with_summaries(records, members=self.members()), stamp)

    def _move_on(self, changed: Mapping[str, _Changed], frames: Mapping[str, Frame]) -> dict[str, Snapshot]:
        """Make the handles show the committed states, and return these."""
        states = {}
        for path, (handle, draft) in changed.items():
            with suppress(OSError, B2ArrayError):
                states[path] = self._view.current(path)
            handle.leave(states.get(path))
            draft.published(frames[path])
        return states
