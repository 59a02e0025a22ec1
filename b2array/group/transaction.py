"""`Transaction`: collects changes of several members of a group for one commit.

A new member begins where no reader looks. At the end `b2array.commit.group_commit.commit_group` commits all changes,
unless another writer has changed a member that the transaction has read. What the kinds of storage do differently is in
the home of the group, a `GroupHome`, and in the medium of the commit.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from b2array import threads
from b2array.array.drafts import aborting
from b2array.array.schunk import SChunk
from b2array.catalog.manifest import EMBEDDED, is_embedded, name_of
from b2array.catalog.names_of_members import Members, check_new
from b2array.catalog.owners import ALONE
from b2array.commit.draft import warn_of_forgotten
from b2array.commit.fork_point import ForkPoint
from b2array.commit.forks import make_fork_point
from b2array.commit.group_commit import Committed, GroupChange, MemberChange, commit_group
from b2array.commit.handle import Handle, Mode
from b2array.commit.in_bucket import map_concurrently
from b2array.commit.snapshot_changes import SnapshotChanges
from b2array.errors import make_ended_error, make_forked_error
from b2array.frame.revision import Revision
from b2array.group import embedded
from b2array.group.group_forks import NOTHING, Changes, open_draft
from b2array.group.homes import GroupHome
from b2array.group.new_members import NewFrame
from b2array.group.snapshot_writing import prepare_members
from b2array.group.table_list import update_table_list

__all__ = ["Transaction", "begin", "changing", "committing"]


class Transaction(Changes):
    """Changes to members of a group that wait for `commit`. It does not show later commits of other writers.

    Parameters
    ----------
    group : GroupHome
        The home that shows the changes after the commit.
    explicit : bool
        Whether the user reads and writes through the transaction; see `GroupChange`.
    """

    change: GroupChange

    def __init__(self, group: GroupHome, *, explicit: bool = True) -> None:
        """Begin a transaction on the members that the group shows; this lists them if they were not listed yet."""
        view = group.begin_view(explicit=explicit)
        super().__init__(view)
        manifest, version = view.versioned_manifest()
        self.change = GroupChange(
            view.url,
            manifest,
            version,
            view.members(),
            manifest.identity or os.urandom(8).hex(),
            explicit,
            SnapshotChanges(view.url, manifest),
        )
        self._group = group
        self._medium = view.medium()
        self._handles: dict[str, Handle] = {}
        self._members: Members | None = None
        # A sealed one is being committed: it takes no more changes.
        self._phase: Literal["open", "sealed", "ended"] = "open"
        self._owner = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        """Raise ValueError: other processes cannot take part in a transaction, except through forks."""
        raise ValueError("a group with a transaction under way cannot be pickled")

    @property
    def storage_options(self) -> dict[str, Any]:
        """The options for fsspec with which new members are made."""
        return self.view.storage_options

    @property
    def snapshots(self) -> SnapshotChanges:
        """The snapshots that the commit makes, drops and copies; ConflictError if the transaction has ended."""
        self._require_open()
        return self.change.snapshots

    def members(self) -> Members:
        """Return the path of each member by its name; in an explicit transaction, with its changes."""
        return self.view.members() if self._members is None else self._members

    def _update_members(
        self,
        removed: Iterable[str] = (),
        added: Mapping[str, str] = NOTHING,
    ) -> None:
        """In an explicit transaction, show the members without the names `removed`, and with the paths `added`."""
        if not self.change.explicit:  # no user reads the members before the commit, and a copy of many takes time
            return
        if self._members is None:
            self._members = self.view.members().copy()
        for name in removed:
            self._members.remove(name)
        for name, path in added.items():
            self._members.add(name, path)

    def _require_open(self) -> None:
        """Raise ConflictError if the transaction has ended, or if `os.fork` has made this process since it began.

        RuntimeError: the interpreter is ending.
        """
        if threads.is_ending():
            raise threads.make_ending_error()
        if self._phase != "open":
            raise make_ended_error(self.url)
        if self._owner != os.getpid():
            raise make_forked_error(self.url)

    # Changes.

    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:  # noqa: ARG002
        """Open a member. Writes to it become part of the commit.

        A member that is opened for writing joins the transaction with a draft, and counts as read: the commit is
        refused if another writer changes it first. ConflictError says that the transaction has ended.
        """
        handle = self.open_unnoted(path, mode)
        if mode != "r":
            self.note_read(path)
        return handle

    def open_unnoted(self, path: str, mode: Mode) -> Handle:
        """Open a member without noting that it was read. If it has a draft, return the same handle in any mode.

        A member that is opened for writing joins the transaction with a draft. Embedded members are opened read-only.
        Raises ValueError if an inner group owns a member to write, and ConflictError if the transaction has ended.
        """
        self._require_open()
        handle = self._handles.get(path)
        if handle is not None:
            return handle
        if mode == "r" or is_embedded(path):  # embedded members can only be read
            return self.view.open(path, "r")
        handle = self.view.open_for_change(path)  # without the mutex, so that threads wait for their requests together
        with self._mutex.held:
            self._require_open()  # the commit may have begun meanwhile
            if path not in self._handles:  # another thread may have been faster
                opened = handle.revision.generation
                draft = handle.begin()
                handle.enter(draft)
                self._handles[path] = handle
                self.change.members[path] = MemberChange(name_of(path), draft, opened=opened)
            return self._handles[path]

    def _prepare_forks(self, paths: Sequence[str]) -> Iterable[ForkPoint]:
        """Prepare members for forks, several at a time, and return the point from which each fork starts.

        This begins drafts of the members, and encodes their open chunks.
        """
        return map_concurrently(lambda path: make_fork_point(open_draft(self, path)), paths)

    def note_read(self, path: str) -> None:
        """Note that a member was read, so that the commit is refused if another writer changes it first.

        Only the first reading counts. New members are not noted, and a transaction that is not explicit notes nothing.
        Where the manifest does not name the state of the member, this opens the member for writing.
        """
        self._require_open()
        change = self.change
        member = change.members.get(path)
        if not change.explicit or path in change.read or (member is not None and member.draft.base is None):
            return
        found = self.view.find_generation(path)
        if found is None:
            return
        path, generation = found
        unadopted = None
        if generation is None:
            if member is None:
                self.open_unnoted(path, "r+")
                member = change.members[path]
            generation = member.opened
            if member.draft.base is not None:
                self.view.require_shown(path, member.draft.base)
            unadopted = None if self.view.is_local else member.draft.base
        with self._mutex.held:
            change.read.setdefault(path, generation)
            if unadopted is not None:
                change.unadopted.setdefault(path, unadopted)

    def create(
        self,
        name: str,
        suffix: str,
        new: NewFrame,
        *,
        overwrite: bool,
    ) -> Handle:
        """Make a member with the draft from `new`, and return a handle to write to it.

        Readers see the member after the commit. `suffix`, `new` and `overwrite` are as for `GroupHome.begin_member`,
        which begins the member where no reader looks. If the transaction has forks, a journal protects the files of the
        member from `vacuum`. Raises ValueError if the group has a member of this name that was not deleted, and
        ConflictError if the transaction has ended; also the errors of `check_new` and of `GroupHome.begin_member`.
        """
        self._require_open()
        change = self.change
        # The members do not show deletions if the transaction is not explicit; then the caller has checked the name.
        if name not in change.removed or change.explicit:
            if name in self.members():
                raise ValueError(
                    f"a transaction cannot replace the member {name!r}; delete it first, or change it instead"
                )
            check_new(name, self.members(), self.url)
        path, member = self.view.begin_member(change, name, suffix, new, overwrite=overwrite)
        draft = member.draft
        handle = Handle(Revision(draft.store, draft.state, 0, None, "", ALONE), "r+")
        handle.enter(draft)
        with aborting(draft), self.undivided.held, self._mutex.held:
            self._require_open()  # the commit may have begun meanwhile
            self._handles[path], change.members[path] = handle, member
            self._update_members(added={name: path})
        if self._id_for_forks and not draft.destination.aside:
            # With forks, the transaction may last long, and `vacuum` then spares only files that a journal names.
            make_fork_point(draft)
        return handle

    def remove(
        self,
        members: Mapping[str, str],
        states: Mapping[str, Revision] = NOTHING,
    ) -> None:
        """Delete members in the commit, given as paths by name; give up changes to them, and new ones, at once.

        `states` are the states of members that were copied, by path. The commit is refused if another writer
        changes one of them first. If an inner group owns one of the members, raise ValueError and change nothing.
        """
        with self.undivided.held:
            self._require_open()
            change = self.change
            for path in members.values():
                member = change.members.get(path)
                if member is None or not member.is_new:
                    self.view.require_own(path)
            for name, path in members.items():
                copied = states.get(path)
                member = change.members.get(path)
                if member is not None:
                    if copied is not None and member.draft.base is not None:
                        # The copy includes uncommitted changes; others can only have changed the committed state.
                        copied = member.draft.base
                    self._forget(path)
                if member is not None and member.is_new:
                    continue
                change.removed[name] = path
                if copied is not None:
                    change.moved[path] = copied.generation
                    if self.view.is_unadopted(path):
                        # A state that is read now may have changes of another writer that the copy lacks.
                        change.unadopted[path] = copied
            inner = [name for name in members if name in self.view.embedded_paths()]
            if inner:
                embedded.remove(SChunk(self.open_unnoted(EMBEDDED, "r+")), inner)
            self._update_members(removed=members)

    def put_back(self, members: Mapping[str, str]) -> None:
        """Undo `remove` for members that the transaction had not changed before, given as paths by name.

        `remove` was called without `states`.
        """
        for name, path in members.items():
            self.change.removed.pop(name, None)
            self.change.unadopted.pop(path, None)
        inner = [name for name in members if name in self.view.embedded_paths()]
        if inner:
            embedded.put_back(SChunk(self.open_unnoted(EMBEDDED, "r+")), inner)
        self._update_members(added=members)

    def _forget(self, path: str) -> None:
        """Give up the changes to a member, take its handle out of the transaction, and remove its staged files.

        The handle of a new member raises errors from now on; another one shows the committed state again.
        """
        handle, member = self._handles.pop(path), self.change.members.pop(path)
        if member.is_new:
            handle.abandon()
        else:
            handle.leave(None)
        member.draft.abort()
        self._medium.forget(path, member)

    # The end.

    def abort(self) -> None:
        """Give up all changes, and end the transaction. Also removes the copies of states made for snapshots.

        Handles of new members raise errors from now on; other handles show the committed state again. In a process
        made by `os.fork`, while the interpreter ends, or if nobody knows whether the commit has happened, all files
        remain.
        """
        self._phase = "ended"
        if threads.is_ending():
            return
        # After os.fork(), the staged files belong to the parent.
        if self._owner != os.getpid() or self.change.is_unknown:
            for handle in self._handles.values():
                handle.leave(None)
            return
        for path in [*self._handles]:
            self._forget(path)
        self._medium.discard(self.change)

    def commit(self) -> None:
        """Make all changes visible at once, or none, and end the transaction. Warns of forks that were never merged.

        First prepare the members for new snapshots, which may rewrite some, and update python-blosc2's list of tables.
        Raises ConflictError if another writer has changed a member or a snapshot on which they depend. After an error,
        the transaction is aborted, unless the commit has already happened, and the group lists its members again.
        """
        self._require_open()
        drafts = []
        try:
            # Wait for changes of several steps: what is prepared here must take all of their steps into account.
            with self.undivided.held:
                prepare_members(self, self.change)
                update_table_list(self, self.change)
                # From now on, refuse changes by other threads: the commit would not have them.
                with self._mutex.held:
                    self._phase = "sealed"
            # Without the mutexes, which a thread may want that writes to one of the members.
            for handle in self._handles.values():
                handle.seal()
            drafts = [member.draft for member in self.change.members.values()]
            self._commit()
        except BaseException:
            if self._phase != "ended":
                self.abort()
            # Show the present members, whether the commit has happened or not.
            self._group.refresh()
            raise
        for draft in drafts:
            warn_of_forgotten(draft)
        self._roster.warn_of_forgotten(self.url)

    def _commit(self) -> None:
        """Commit all changes, show them in the handles of the group and of the members, and give up unchanged drafts.

        Without any change, nothing is written. If an error follows the commit, the handles show the commit as well.
        """
        change = self.change
        change.note_written()
        written = change.written
        if written or change.removed or change.snapshots:
            try:
                committed = commit_group(self._medium, change)
            except BaseException:
                if change.committed is not None:
                    self._show(Committed(change.committed), written)
                raise
            self._show(committed, written)
        self._phase = "ended"
        for path in change.members.keys() - written.keys():
            self._forget(path)

    def _show(self, committed: Committed, written: Collection[str]) -> None:
        """End the transaction after the commit: show the result in all handles, and clean up after the drafts.

        `written` are the paths of the members that the commit has written. The group remembers their states.
        """
        self._phase = "ended"  # an error from now on must not abort the committed changes
        self.view.show_commit(committed, self.change)
        self._group.show_commit(committed, self.change)
        members = self.change.members
        states = _by_opened_path(committed.states, members, written)
        for path in written:
            self._handles[path].leave(states.get(path))
        if self.view.is_local:
            for path, state in states.items():
                _finish(members[path], state)
        else:
            map_concurrently(lambda path: _finish(members[path], states[path]), [*states])
        for path, state in committed.states.items():
            self.view.remember(path, state)


def _by_opened_path(
    states: Mapping[str, Revision],
    members: Mapping[str, MemberChange],
    written: Collection[str],
) -> dict[str, Revision]:
    """Return committed states by the paths at which the transaction has opened its members.

    Another writer may have replaced a member, which got another path, before the transaction opened it. `written` are
    the paths of the members that the commit has written.
    """
    paths = {members[path].name: path for path in written}
    return {path if path in members else paths[name_of(path)]: state for path, state in states.items()}


def _finish(member: MemberChange, state: Revision) -> None:
    """Clean up after the commit of a member, given its committed state: end its draft, and remove unused new files.

    On a local disk, there is nothing to do for a new member, whose frame has been moved.
    """
    if member.made is None:
        # The revisions of copied snapshots refer to chunks of earlier states, so keep the files of these chunks.
        member.draft.delta.keeps = (*member.draft.delta.keeps, *member.earlier)
        member.draft.finish(state.frame)


# Beginning a transaction.


def begin(
    home: GroupHome,
    replacing: str | None = None,
    *,
    explicit: bool = True,
) -> Transaction:
    """Begin a transaction, after completing the commit of a writer that was killed.

    If the group was copied from an object store, this first makes it a local group. The transaction starts by deleting
    the members whose names begin with `replacing`. `GroupChange` describes `explicit`; an explicit transaction first
    lists the members again, and `home` shows them as well.
    """
    if explicit:  # other callers have just read the list of members
        home.refresh()
    home.recover()
    changes = Transaction(home, explicit=explicit)
    if replacing is not None:
        members = changes.members()
        changes.remove({name: path for name, path in members.items() if name.startswith(replacing)})
    return changes


@contextmanager
def changing(home: GroupHome | Changes) -> Iterator[Changes]:
    """Yield changes of members for a block: in the transaction under way, or in a new one, as `committing` does.

    The commit has all steps of the block, or none of them.
    """
    if isinstance(home, Changes):
        with home.undivided.held:
            yield home
    else:
        with committing(home) as changes:
            yield changes


@contextmanager
def committing(home: GroupHome) -> Iterator[Transaction]:
    """Begin a transaction for the block, and commit it at the end; abort it if the block raises.

    The transaction is not explicit: the commit is not refused because of members that were only read.
    """
    with _explaining_lengths(home):
        changes = begin(home, explicit=False)
        try:
            yield changes
        except BaseException:
            changes.abort()
            raise
        changes.commit()


@contextmanager
def _explaining_lengths(home: GroupHome) -> Iterator[None]:
    """If the file system refuses the name of a file in the block, raise an OSError that says what is too long."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        _, _, name = str(error.filename).rpartition("/")
        raise OSError(
            error.errno,
            f"{home.url}: the name of a member is too long for this file system, because its file has a name of "
            f"{len(os.fsencode(name))} bytes while it is written; choose a shorter one, or divide it into groups",
            error.filename,
        ) from None
