"""`Handle`: an open frame, the state that it shows, and the transaction that is under way.

`b2array.NDArray` and `b2array.SChunk` each wrap a handle. A handle shows one committed state, and inside a transaction
the changes on top of it. After a commit through it, the handle shows the new state, with all earlier commits of other
writers. Otherwise, `refresh` shows their commits. The cursors in `b2array.commit.cursor` define other ways to choose
the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from b2array import config, threads
from b2array.catalog.redo import LocalMember
from b2array.commit.cursor import Cursor, Ended, Following, Pinned, Promised
from b2array.commit.draft import Draft, make_abandoned_error, warn_of_forgotten
from b2array.commit.frame_commit import commit
from b2array.commit.frame_locks import publish_waiting, writers_lock
from b2array.errors import (
    B2ArrayError,
    ConflictError,
    FormatError,
    ReadOnlyError,
    SnapshotLostError,
    UnsupportedError,
    make_ended_error,
    prefix_error,
)
from b2array.format.b2nd import CACHE
from b2array.format.frame import Frame
from b2array.format.summary import Summary
from b2array.frame.revision import Revision
from b2array.frame.source import Source
from b2array.store.base import MISSING, Mutex, Store, attempts

__all__ = ["RECOVERABLE", "Handle", "Mode"]

RECOVERABLE = (FormatError, UnsupportedError, ConflictError, *MISSING)
"""What a reading may raise because a commit took away what it reads; see `Handle.recover`."""

Mode = Literal["r", "r+"]
T = TypeVar("T")


class Handle:
    """An open frame.

    Threads may share a handle; they commit one after the other.

    Parameters
    ----------
    state : Revision or Cursor
        The state to show, or a cursor that chooses the state. A handle of a snapshot keeps showing this state.
    mode : {"r", "r+"}
        "r" for reading, "r+" for reading and changing.
    draft : Draft, optional
        A transaction that is under way.

    Attributes
    ----------
    cursor : Cursor
        Chooses the state that the handle shows outside of transactions.
    store : Store
        Where the chunks are.
    mode : {"r", "r+"}
        "r" for reading, "r+" for reading and changing.
    locked : bool
        Whether the holder of the mutex also has the store's lock.
    mutex : Mutex
        The mutex of commits through the handle, and of changes that join a transaction.
    small_writes : tuple of (list of int or None, int)
        The chunk that the last commits wrote in part, and the number of these commits; None after the user was warned.

    Raises
    ------
    ReadOnlyError
        The frame cannot be changed, and `mode` is "r+".
    """

    __slots__ = ("_draft", "_is_sealed", "cursor", "locked", "mode", "mutex", "small_writes", "store")

    def __init__(self, state: Revision | Cursor, mode: Mode, draft: Draft | None = None) -> None:
        if mode not in ("r", "r+"):
            raise ValueError(f"mode must be 'r' or 'r+', not {mode!r}")
        self.cursor: Cursor = Pinned(state) if isinstance(state, Revision) else state
        if mode == "r+":
            _check_writable(state if isinstance(state, Revision) else self.revision)
        # A member that only a summary describes has not been read yet.
        self.store: Store = state.store if isinstance(state, Revision | Promised) else self.revision.store
        self.mode: Mode = mode
        self.mutex = Mutex()
        self.locked = False
        self.small_writes: tuple[list[int] | None, int] = [], 0
        self._draft: Draft | None = None
        # Whether the commit of the transaction has begun, which would lose further changes.
        self._is_sealed = False
        if draft is not None:
            self.enter(draft)

    def _show(self, revision: Revision, draft: Draft | None = None) -> None:
        """Show a revision from now on, in the transaction of `draft`; by default leave the transaction."""
        self._set_cursor(self.cursor.at(revision), draft)

    def _set_cursor(self, cursor: Pinned | Following, draft: Draft | None) -> None:
        """Set cursor and draft of this handle, and take the store of the cursor's state."""
        self.store = cursor.revision.store
        self.cursor, self._draft = cursor, draft

    @property
    def source(self) -> Source:
        """The source of chunks: the transaction under way, or the committed state that this handle shows now.

        A cursor may load that state first: `Following` at each use, `Promised` once.
        """
        if self._draft is not None:
            return self._draft
        cursor = self.cursor
        return cursor.revision if isinstance(cursor, Pinned) else self._look()

    @property
    def described(self) -> Source | Summary:
        """The source, or the summary of a group's member that was not read yet.

        If a new frame was never committed, its ended handle still shows the draft. Other ended handles raise their
        error.
        """
        cursor = self.cursor
        if self._draft is None and isinstance(cursor, Promised | Ended) and cursor.description is not None:
            return cursor.description
        return self.source

    def _look(self) -> Revision:
        """Return the committed state that this handle shows now, and let the cursor move there.

        A cursor may load that state first: `Following` the newest one, `Promised` the described member. This waits
        for a commit of another thread through this handle. Raises the errors of the cursor's `look`.
        """
        with self.mutex.held:
            cursor = self.cursor.look()
            self._set_cursor(cursor, self._draft)
            return cursor.revision

    @property
    def revision(self) -> Revision:
        """The committed state that this handle has last shown; a member that was not read yet is read.

        An ended handle raises its error.
        """
        cursor = self.cursor
        return self._look() if isinstance(cursor, Promised) else cursor.revision

    @property
    def frame(self) -> Frame:
        """Header, index and trailer of the source."""
        return self.source.state.frame

    @property
    def url(self) -> str:
        """The URL of the frame, without secrets."""
        return self.store.url

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is under way on this handle."""
        return self._draft is not None

    @property
    def draft(self) -> Draft | None:
        """The changes of the transaction that is under way; None outside of transactions."""
        return self._draft

    @property
    def generation(self) -> str:
        """The name of the committed state that this handle shows; it changes with every commit.

        Outside of transactions, the cursor may load that state first.
        """
        return self.revision.generation if self._draft is not None else self._look().generation

    def recover(self, source: Source, error: B2ArrayError | OSError) -> Source:
        """After an error, return the source to read from next, or raise the error with the URL in it.

        A commit through this handle may have removed the bytes that were read; then a newer source has replaced the old
        one. If a commit of the group has moved the state, the handle shows it in its new place. If another writer's
        commit has removed bytes of the transaction's base, the transaction is rebased. ConflictError: another writer
        has removed the bytes that were read.
        """
        if not isinstance(error, UnsupportedError):
            with self.mutex.held:  # once a commit under way is over
                newest = self.source
                if _source_key(newest) != _source_key(source):
                    return newest
                if source is self._draft and _catch_up(self._draft):
                    return source
                if isinstance(source, Revision) and source.owner.may_move:
                    current = _find_moved(source, error)
                    if current is not None:
                        self._show(current, self._draft)
                        return current
        _raise_clearer(source, error)
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def reading(self, task: Callable[[Source], T]) -> T:
        """Return the result of a task that reads; repeat it if a commit through this handle has removed its source.

        Raises the errors of `recover`, and RuntimeError if the interpreter is ending.
        """
        if threads.is_ending():
            raise threads.make_ending_error()
        source = self.source
        while True:
            try:
                return task(source)
            except RECOVERABLE as error:
                source = self.recover(source, error)

    # Changing.

    def attempts(self, *, anywhere: bool = False) -> Iterator[AbstractContextManager[Draft]]:
        """Yield attempts at a change until one has succeeded; after a conflict, the body of the loop runs again.

        ::

            for attempt in handle.attempts():
                with attempt as draft:
                    ...  # changes the draft

        The end of the ``with`` block commits the changes on top of the commits of other writers. If another writer has
        changed the same chunks, there is another attempt. After some attempts the handle takes the store's lock, if
        there is one, and other writers wait. Inside a transaction, the changes join the transaction. A block that
        raises changes nothing. With `anywhere`, the change remains valid even if another writer has changed the
        metalayers, or the number or order of the chunks. ConflictError: the change is not valid any more.
        """
        self.require_writable()
        for tried in attempts(self.store):
            if tried == config.retries and not self.store.can.compare:
                break
            outcome = _Outcome()
            yield self._attempt(outcome, anywhere=anywhere)
            if outcome.is_success:
                return
        yield self._last_attempt(anywhere=anywhere)

    @contextmanager
    def _attempt(self, outcome: _Outcome, *, anywhere: bool) -> Iterator[Draft]:
        """Commit the changes of the block, and note in `outcome` whether that has succeeded.

        After a conflict, show the newest state. If a further attempt can succeed, this raises nothing, and `attempts`
        yields that attempt; otherwise it raises the conflict. Inside a transaction, the changes join the transaction,
        and a conflict may rebase its draft. `anywhere` is as for `attempts`.
        """
        before, joined = self.revision, self._draft
        try:
            with self._changing() as draft:
                yield draft
            outcome.is_success = True
        except ConflictError:
            with self.mutex.held:
                if self._draft is not None:
                    # If a transaction has begun meanwhile, the next attempt joins it.
                    again = self._draft is not joined or (not self._is_sealed and _catch_up(self._draft))
                else:
                    self._show(self._reload())
                    moved = self.revision.generation != before.generation
                    again = moved and (anywhere or self.revision.has_same_chunks(before))
            if not again:
                raise

    @contextmanager
    def _last_attempt(self, *, anywhere: bool) -> Iterator[Draft]:
        """Take the lock of the frame, reload the newest state, and commit the changes of the block on top of it.

        Inside a transaction, the changes join the transaction, without the lock. ConflictError: another writer has
        changed the number or order of the chunks.
        """
        before = self.revision
        with self.mutex.held, ExitStack() as locks:
            if self._draft is None:
                if not self.locked:
                    locks.enter_context(self._take_lock())
                self._show(self._reload())
                # The numbers in the change may now stand for other chunks.
                if not anywhere and not self.revision.has_same_chunks(before):
                    raise ConflictError(f"{self.url} was changed by another writer; repeat the change")
            yield locks.enter_context(self._changing(locked=self._draft is None))

    def _reload(self) -> Revision:
        """Load the state that the store holds now, and return it; ConflictError if the frame was deleted or moved."""
        try:
            return self.revision.owner.load(self.revision)
        except MISSING as error:
            _raise_clearer(self.revision, error)
            raise

    def _take_lock(self) -> AbstractContextManager[object]:
        """Take and return the lock of the frame, after taking the step that may be pending for it.

        ConflictError: its directory was deleted, or replaced by a file.
        """
        try:
            return writers_lock(self.store, self.revision.name)
        except MISSING as error:
            _raise_clearer(self.revision, error)
            raise

    @contextmanager
    def _changing(self, *, locked: bool = False) -> Iterator[Draft]:
        """Yield a draft, and commit the changes of the block; inside a transaction, yield its draft and only add them.

        If the block raises, its changes are undone. If `locked`, the caller has the lock of the frame. ConflictError:
        the commit of the transaction has begun.
        """
        with self.mutex.held:
            joined = self._draft
            if joined is not None:
                self.require_unsealed()
                try:
                    with joined.attempt():
                        yield joined
                except (FormatError, UnsupportedError, FileNotFoundError, NotADirectoryError) as error:
                    _raise_clearer(joined, error)
                    raise
                return
            draft = self.new_draft(locked=locked)
        try:
            yield draft
        except BaseException as error:
            draft.abort()
            if isinstance(error, FormatError | UnsupportedError | FileNotFoundError | NotADirectoryError):
                _raise_clearer(draft, error)
            raise
        with self.mutex.held:
            self._commit(draft)

    def _commit(self, draft: Draft) -> None:
        """Commit a draft, and show the new state; warn of forks that were never merged.

        The handle stays in its transaction, if it is in one. Raises the errors of `commit`.
        """
        try:
            committed = commit(draft)
            # Without changes there was no commit, and the handle may already show a later commit of another thread.
            if committed is not draft.base:
                self._show(committed, self._draft)
            warn_of_forgotten(draft)
        except (FormatError, *MISSING) as error:
            _raise_clearer(draft, error)
            raise
        except KeyboardInterrupt:
            # Ctrl-C may have come after the commit, so show the state in the store; if it cannot be read, keep the old
            # one.
            with suppress(OSError, B2ArrayError):
                self._show(self.revision.owner.load(self.revision), self._draft)
            raise

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Combine all changes through this handle inside the ``with`` block into one commit.

        Threads that write through the handle join the transaction, one at a time, and reads through it show the
        changes. If the block raises an exception, nothing is committed, and the draft is aborted. ConflictError:
        another writer has changed chunks that the block has read or written; nothing was committed. ValueError: a
        transaction is under way.
        """
        draft = self.begin()
        try:
            self.enter(draft)
            try:
                yield
            except BaseException:
                # While the interpreter ends, no other thread could release the mutex.
                if not threads.is_ending():
                    self.leave(None)
                draft.abort()
                raise
            with self.mutex.held:
                self.seal()
                try:
                    self._commit(draft)
                finally:
                    self._show(self.revision)
        finally:
            # Ctrl-C may have come when the transaction began or ended. It can interrupt a call, but not an assignment.
            if self._draft is draft:
                self._draft = None

    def begin(self) -> Draft:
        """Return a draft for a transaction of this handle, on top of the committed state that it shows now.

        The handle does not enter the transaction. If a step of the group's commit is pending for the frame, it is taken
        first. ValueError: a transaction is under way. ReadOnlyError: the handle was opened for reading.
        """
        self.require_writable()
        with self.mutex.held:
            self._require_no_transaction()
            if not isinstance(self.cursor, Pinned):
                self._look()
            return self.new_draft()

    def enter(self, draft: Draft) -> None:
        """Enter a transaction with a draft from `begin` or of a new frame; the caller commits it and calls `leave`.

        If another thread has committed since the draft began, this rebases the draft. From now on, chunks that are
        written in part stay open. ValueError: a transaction is under way.
        """
        self.require_writable()
        with self.mutex.held:
            self._require_no_transaction()
            if draft.base is not None and draft.base is not self.revision:
                draft.rebase(self.revision)  # another thread has committed since the draft began
            draft.keep_open()
            self._draft, self._is_sealed = draft, False

    def _require_no_transaction(self) -> None:
        """Raise ValueError if a transaction is under way."""
        if self._draft is not None:
            raise ValueError("a transaction is under way on this handle already")

    def seal(self) -> None:
        """Wait for a change by another thread; from now on, the transaction under way takes no changes."""
        with self.mutex.held:
            self._is_sealed = True

    def require_unsealed(self) -> None:
        """Raise ConflictError if the commit of the transaction under way has begun."""
        if self._is_sealed:
            raise make_ended_error(self.url)

    def leave(self, revision: Revision | None) -> None:
        """Wait for changes of other threads, and leave the transaction without a commit; its draft stays as it is.

        Show `revision`; with None, show the last committed state again.
        """
        with self.mutex.held:
            self._show(revision or self.revision)

    def abandon(self) -> None:
        """Leave the abandoned transaction of a new frame: every further use of the handle raises ConflictError."""
        with self.mutex.held:
            self.cursor, self._draft = Ended(make_abandoned_error(self.url), self._draft), None

    def require_writable(self) -> None:
        """Raise ReadOnlyError if the handle was opened for reading, and RuntimeError if the interpreter is ending."""
        if threads.is_ending():
            raise threads.make_ending_error()
        if self.mode == "r":
            raise ReadOnlyError(f"{self.url} was opened for reading; {self.store.advice}")

    def new_draft(self, *, locked: bool = False) -> Draft:
        """Begin a draft on top of the committed state, apart from any transaction under way, and return it.

        If a step of the group's commit is pending for the frame, this takes it first, and shows the result. If the
        header of the frame was not read yet, this reads it. If `locked`, the caller has the lock of the frame.
        FileNotFoundError or ConflictError: the frame is gone.
        """
        revision = self.revision
        owner = revision.owner
        if owner.may_move:
            try:
                if isinstance(owner, LocalMember):
                    publish_waiting(owner)
                revision = revision.owner.load(revision)
            except MISSING as error:
                _raise_clearer(revision, error)
                raise
            self._show(revision, self._draft)
        if not revision.header:
            current = self._reload()
            if current.generation == revision.generation:
                revision = current
                self._show(revision, self._draft)
        return Draft(self.store, revision, locked=locked or self.locked)

    def pinned(self, mode: Mode = "r") -> Handle:
        """Return another handle that always shows the present committed state, whatever this handle commits.

        ValueError: a transaction is under way.
        """
        if self._draft is not None:
            raise ValueError("a transaction is under way on this handle; what it changes is not committed yet")
        return Handle(self._look(), mode)

    def show_committed(self, revision: Revision) -> None:
        """Show a state that another handle or function has committed; do nothing if a transaction is under way."""
        with self.mutex.held:
            if self._draft is None:
                self._show(revision)

    def refresh(self) -> None:
        """Load and show the commits of other writers since this handle was opened, or last committed.

        The new state may be of another frame, which has replaced this one. ValueError: a transaction is under way.
        """
        with self.mutex.held:
            if self._draft is not None:
                raise ValueError("refresh() inside a transaction would lose its changes")
            self._set_cursor(self.cursor.newest(), None)

    def close(self) -> None:
        """Close files. The handle opens them again when it needs them."""
        self.store.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the handle with the state that it shows; a handle that follows the newest state will do so again.

        ValueError: a transaction is under way.
        """
        if self._draft is not None:
            raise ValueError("a handle with a transaction under way cannot be pickled")
        revision = self.revision
        return Handle, (Following(revision) if isinstance(self.cursor, Following) else revision, self.mode)


@dataclass(slots=True)
class _Outcome:
    """Whether an attempt at a change has succeeded."""

    is_success: bool = False


def _check_writable(revision: Revision) -> None:
    """Raise ReadOnlyError if the frame of a revision, or its store, cannot be changed."""
    if revision.start:
        raise ReadOnlyError("a frame inside a larger file can only be read")
    if revision.at is not None:
        raise ReadOnlyError(f"{revision.url}: a snapshot can only be read; restore() goes back to it")
    if CACHE in dict(revision.frame.metalayers):
        raise ReadOnlyError(f"{revision.url} caches another array for python-blosc2, and can only be read; copy it")
    if not revision.store.can.write:
        raise ReadOnlyError(f"{revision.url} can only be read; open it with mode='r'")


def _catch_up(draft: Draft) -> bool:
    """Rebase a draft if another writer's commit has removed the bytes of its base; return whether it was rebased.

    Only a commit that replaces a whole file removes them. This does nothing for new frames and forks, or inside an
    `attempt`; otherwise it reads the newest state. ConflictError: the other writer has changed the same chunks.
    """
    base = draft.base
    if base is None or draft.sparse or draft.store.can.append or draft.undo is not None or draft.point is not None:
        return False
    try:
        current = base.owner.load(base)
    except FileNotFoundError:  # another writer has deleted the frame
        return False
    if current.generation == base.generation:
        return False
    draft.rebase(current)
    return True


def _source_key(source: Source) -> object:
    """Return a value that tells sources apart. A `Following` cursor often makes new revisions of the same state."""
    return (source.generation, source.version) if isinstance(source, Revision) else id(source)


def _find_moved(source: Revision, error: Exception) -> Revision | None:
    """Load the state of a source from the place to which a commit of its group has moved it; None if it was not moved.

    SnapshotLostError: other software has overwritten it.
    """
    try:
        current = source.owner.load(source)
    except SnapshotLostError as lost:
        raise lost from error
    except (OSError, B2ArrayError):
        return None
    is_elsewhere = not current.owner.may_move or (current.url, current.at) != (source.url, source.at)
    return current if is_elsewhere and current.generation == source.generation else None


def _raise_clearer(source: Source, error: B2ArrayError | OSError) -> None:
    """Raise a clearer error if possible: one with the URL in it, or a ConflictError if another writer is the cause.

    To find the cause, this reads the state in the store. Other software moves chunks within its file, and a writer may
    replace a directory by a file.
    """
    if isinstance(error, FormatError | UnsupportedError | FileNotFoundError | NotADirectoryError):
        stale = source.staleness()
        if stale is not None:
            raise stale from error
    if isinstance(error, FormatError | UnsupportedError) and source.url not in str(error):
        raise prefix_error(source.url, error) from error
