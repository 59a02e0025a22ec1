"""Groups in a ``.b2z`` file while they are made or changed: until `close`, the members are in a directory next to it.

The directory is an ordinary group, and each change is a commit in it. `close` packs the members into a new archive next
to the old one, renames the new archive, and removes the directory. Until then the old archive does not change.

The writer holds a lock until it ends. A note in the directory has the version of the archive with which the writer
began and, after the new archive is written, the version of the new archive. The note of a killed writer tells the next
writer how to proceed:

==========================================  ==========================================================
the note                                    the directory
==========================================  ==========================================================
is missing                                  has nothing of value: the writer was unpacking or removing it
names the present archive as written        has nothing of value: the archive has everything
names the present archive as its beginning  has changes that were not packed; the next writer may continue
names another archive                       has changes of an archive that another program has replaced
==========================================  ==========================================================
"""

from __future__ import annotations

import os
import shutil
import weakref
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, cast

import msgpack

from b2array.catalog import owners
from b2array.catalog.group_places import ZIP
from b2array.catalog.manifest import EMBEDDED
from b2array.catalog.names_of_members import Members
from b2array.commit.frame_commit import commit
from b2array.commit.handle import Handle, Mode
from b2array.errors import ConflictError, FormatError, ReadOnlyError, UnsupportedError, warn
from b2array.frame.source import FRAME_NAME
from b2array.group import whole
from b2array.group.archive import NOTE, Archive, is_content
from b2array.group.local_group import LocalGroup
from b2array.group.new_members import copier_of
from b2array.store import disk
from b2array.store.atomic import AtomicFile, place_beside, require_free
from b2array.store.base import Head, Version
from b2array.store.endings import WORK
from b2array.store.links import refuse_link
from b2array.store.local_store import LocalStore
from b2array.store.open import open_store

__all__ = ["Unpacked", "is_changeable_archive", "lock_abandoned", "open_unpacked", "remove"]

_SUFFIX = ".b2z"
_NOTE_NBYTES = 2**12


class Unpacked(LocalGroup):
    """The members of an archive, in the directory of its writer.

    `open_unpacked` returns an object that owns the directory. Its copies use the directory without owning it, in other
    processes as well. After `close`, the object shows the archive.
    """

    _lock: FileIO | None = None
    _begun: Version | None = None
    _archive: Archive | None = None

    @property
    def url(self) -> str:
        """The path of the archive."""
        return self.store.url.removesuffix(WORK)

    def own(self, lock: FileIO, begun: Version | None) -> None:
        """Take ownership of the directory and its lock. `begun` is the version of the archive, if there is one.

        From then on, dropping the object without `close` warns.
        """
        self._lock = lock
        self._begun = begun
        self._finalizer = weakref.finalize(self, _warn_of_forgotten, lock, self.url)

    def members(self) -> Members:
        """Return the path of each member by its name, in the order of the names."""
        if self._archive is not None:
            return self._archive.members()
        return super().members()

    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:
        """Open a member by its path; after `close`, in the archive, where it can only be read."""
        if self._archive is not None:
            return self._archive.open(path, "r")
        return super().open(path, mode, lazy=lazy)

    def refresh(self) -> None:
        """Forget the list of members; the next use lists them again, after `close` from the archive."""
        if self._archive is not None:
            self._archive.refresh()
        else:
            super().refresh()

    def require_ledger(self) -> None:
        """Raise UnsupportedError: an archive has no manifest to list snapshots."""
        raise UnsupportedError(
            f"{self.url} is an archive, which can keep snapshots of its arrays, but not of the whole group; convert it"
            " to a directory first"
        )

    def recover(self) -> None:
        """Complete an interrupted commit; raise ReadOnlyError after `close`."""
        if self._archive is not None:
            raise ReadOnlyError(f"{self.url} was packed and closed; open_group(url, 'a') opens it for changes again")
        super().recover()

    def close(self) -> None:
        """Pack the members into the archive, in one step, and remove the directory. In a copy, this only closes files.

        An interrupted commit is completed first. If packing fails, the old archive and the directory remain, and
        `close` can be called again. ConflictError says that another program has replaced the archive.
        """
        super().close()
        lock = self._lock
        # Only the owner packs: a copy has no lock, and a forked process finds it closed.
        if lock is None or lock.closed:
            return
        self.recover()
        self.refresh()
        archive = LocalStore(self.url)
        begun = self._begun
        packed = AtomicFile(archive, overwrite=begun is not None, expected=begun)
        try:
            self._pack(packed.path)
            written = LocalStore(packed.path).stamp("").version
            _write_note(self.store.url, begun, written)
            packed.finish()
        except BaseException:
            packed.abort()
            raise
        # The new name must be on the disk before the directory is removed.
        archive.force()
        self._archive = Archive(self.url, self.storage_options)
        self._release()

    def discard(self) -> None:
        """Remove the directory with all changes, and show the old archive, which remains. A copy removes nothing."""
        super().close()
        if self._lock is not None and not self._lock.closed:
            self._archive = Archive(self.url, self.storage_options)
            self._release()

    def leave(self) -> str:
        """Leave the directory with all changes to the next writer: release its lock, and close files.

        Return a hint on how to continue, for the user; "" for a copy, which has no lock.
        """
        super().close()
        lock, self._lock = self._lock, None
        if lock is None or lock.closed:
            return ""
        self._finalizer.detach()
        lock.close()
        return f"{self.url} was not written. {_how_to_go_on(self.url)}"

    def _release(self) -> None:
        """Remove the directory and the lock file, and release the lock. Then this object does not own the directory."""
        lock, self._lock = cast(FileIO, self._lock), None
        self._finalizer.detach()
        remove(self.store.url)
        LocalStore(self.url).drop_lock()
        lock.close()

    def _pack(self, path: Path) -> None:
        """Write the members into an archive, uncompressed, so that readers can read them in place.

        This skips what `is_content` does not accept: the manifest, locks and unfinished files. A sparse member becomes
        one contiguous file.
        """
        files = [each for each in self.store.walk() if is_content(each)]
        ending = f"/{FRAME_NAME}"
        sparse = {each.removesuffix(ending) for each in files if each.endswith(ending)}
        alone = [each for each in files if each.rpartition("/")[0] not in sparse]
        # Readers accept any order, and this one does not depend on the file system.
        ordered = sorted({*alone, *sparse}, key=lambda name: (name != EMBEDDED, name))
        with zipfile.ZipFile(path, "w") as archive:
            for each in ordered:
                if each in sparse:
                    self._pack_sparse(archive, each)
                else:
                    archive.write(Path(self.store.url, each), each)

    def _pack_sparse(self, archive: zipfile.ZipFile, path: str) -> None:
        """Write a sparse member, which is a directory, as one file: archives have only contiguous members.

        The file is first made next to the member, and removed afterwards.
        """
        handle = Handle(owners.load(self.store_of(path)), "r")
        copy_into = copier_of(handle, {})
        with place_beside(str(Path(self.store.url, path))) as frame:
            commit(copy_into(frame, overwrite=False, layout="contiguous"))
            archive.write(frame, path)


def is_changeable_archive(url: str, storage_options: Mapping[str, Any]) -> bool:
    """Return whether a URL names an archive that can be made or changed: a local file that ends with ``.b2z``.

    The file may be missing, but a directory may not be in its place.
    """
    if not url.endswith(_SUFFIX):
        return False
    store = open_store(url, storage_options=storage_options)
    return isinstance(store, LocalStore) and not Path(store.url).is_dir()


def open_unpacked(
    url: str,
    storage_options: Mapping[str, Any],
    mode: str,
    *,
    resume: bool | None,
) -> Unpacked:
    """Open an archive for changes: unpack it into a directory, or take over the directory of a killed writer.

    Parameters
    ----------
    url : str
        A URL for which `is_changeable_archive` is true.
    mode : {"r+", "a", "w", "w-", "x"}
        As for `open_group`.
    resume : bool, optional
        Whether to take over the directory that another writer has left, or to remove it. By default such a directory
        raises ConflictError, whose message says so; mode "w" removes it.

    Raises
    ------
    ConflictError
        Another writer is changing the archive, did not finish, or began with another version of the archive.
    FileExistsError, FileNotFoundError
        The mode allows no existing archive, or needs one.
    ValueError
        `resume` does not go with the mode "w".
    """
    if resume and mode == "w":
        raise ValueError("mode 'w' begins with an empty group, and cannot resume; write mode='a'")
    store = cast(LocalStore, open_store(url, storage_options=storage_options))
    path = os.path.realpath(store.url)
    work = path + WORK
    if mode == "r+" and not os.path.lexists(path) and not os.path.lexists(work):
        raise FileNotFoundError(f"{store.url}: there is no group")
    disk.make_directories(str(Path(path).parent))
    lock = LocalStore(path).lock_if_free()
    if lock is None:
        raise ConflictError(
            f"{store.url}: expected no other writer, found one at work in {work}; close that group first"
        )
    try:
        refuse_link(work)
        begun = _check_archive(path, replace=mode == "w")
        home = _prepare_directory(path, work, storage_options, mode, begun, resume=resume)
    except BaseException:
        # Without a directory, the lock file has no purpose.
        if not os.path.lexists(work):
            LocalStore(path).drop_lock()
        lock.close()
        raise
    home.own(lock, begun)
    return home


def _prepare_directory(
    path: str,
    work: str,
    storage_options: Mapping[str, Any],
    mode: str,
    begun: Version | None,
    *,
    resume: bool | None,
) -> Unpacked:
    """Prepare the directory `work` of the archive at `path` for `open_unpacked`. The caller holds the lock.

    `begun` is the version of the archive; None if there is no archive.

    This takes over a directory that another writer has left, and completes its interrupted commit; or it removes that
    directory, and unpacks the archive or makes an empty group. Raises the errors of `open_unpacked`.
    """
    left = _read_note(work, begun)
    if left is None or mode == "w" or resume is False:
        remove(work)
    elif resume is None:
        raise ConflictError(f"{path}: a writer did not finish. {_how_to_go_on(path)}")
    elif left != _format_version(begun):
        raise ConflictError(
            f"{path} was replaced since a writer left its changes in {work}; resume=False removes the changes"
        )
    if os.path.lexists(work):
        home = Unpacked(work, storage_options)
        home.recover()
        return home
    if mode in ("x", "w-") and begun:
        raise FileExistsError(f"{path} exists; mode='w' replaces a group")
    if mode == "r+" and not begun:
        raise FileNotFoundError(f"{path}: there is no group")
    home = Unpacked(work, storage_options)
    try:
        if begun and mode != "w":
            Archive(path, {}).unpack(home.store)
        if mode == "w" or not Path(work, EMBEDDED).exists():
            whole.initialise(home)
        _write_note(work, begun)
    except BaseException:
        remove(work)
        raise
    return home


def _check_archive(path: str, *, replace: bool) -> Version | None:
    """Read the head of an archive, and return the archive's version; None for a missing file.

    A file that is not an archive raises FormatError, or FileExistsError if the caller wants to `replace` it.
    """
    store = LocalStore(path)
    (head,) = store.head([""], 16)
    if replace:
        require_free(store, {"": ZIP[0][:2]}, "an archive", overwrite=True)
    elif isinstance(head, Head) and not whole.is_archive(store):
        raise FormatError(f"{path}: expected an archive, found another file")
    if isinstance(head, FileNotFoundError):
        return None
    if isinstance(head, Exception):
        raise head
    return store.stamp("").version


def _read_note(work: str, version: Version | None) -> str | None:
    """Read the note, and return the version of the archive with which an unfinished writer began.

    Return None if the writer has left no changes: without a readable note, or if the archive of this `version` has
    them.
    """
    (head,) = LocalStore(work).head([NOTE], _NOTE_NBYTES)
    if not isinstance(head, Head):
        return None
    try:
        begun, written = msgpack.unpackb(head.data)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    if not isinstance(begun, str) or not isinstance(written, str):
        return None
    is_packed = version is not None and written == _format_version(version)
    return None if is_packed else begun


def _write_note(work: str, begun: Version | None, written: Version | None = None) -> None:
    """Write the note: the version of the archive at the beginning, and the version that the writer has written."""
    note = [_format_version(begun), _format_version(written)]
    LocalStore(work).replace(NOTE, msgpack.packb(note))


def _format_version(version: Version | None) -> str:
    """Return a version as text for the note; "" for None."""
    return str(version or "")


def remove(work: str) -> None:
    """Remove a writer's directory, as far as possible: on Windows, open files stay. A missing directory is no error."""
    # Remove the note first: without it, the files that stay have no value. It is missing if the writer never began.
    with suppress(FileNotFoundError, NotADirectoryError):
        Path(work, NOTE).unlink()
    shutil.rmtree(work, ignore_errors=True)


def _how_to_go_on(path: str) -> str:
    """Return a hint for users: how to continue with the changes of an unfinished writer, and how to remove them."""
    return (
        f"The changes are in {path}{WORK}: open_group(url, 'a', resume=True) continues with them, and resume=False or"
        " b2array.vacuum removes them"
    )


def _warn_of_forgotten(lock: FileIO, path: str) -> None:
    """Release the lock of a directory whose owner was dropped without `close`, and warn; the directory remains."""
    # In a forked process the lock is closed: the parent still owns the directory.
    if not lock.closed:
        lock.close()
        warn(f"{path}: the group was dropped before it was closed; use it in a with statement. {_how_to_go_on(path)}")


@contextmanager
def lock_abandoned(url: str, storage_options: Mapping[str, Any]) -> Iterator[str | None]:
    """Lock and yield the directory that a killed writer of an archive has left; None if no directory is abandoned.

    Until the block ends, the lock keeps other writers from beginning. If the block removes the directory, the lock file
    goes as well.
    """
    path = os.path.realpath(open_store(url, storage_options=storage_options).url)
    if not Path(path + WORK).is_dir():
        yield None
        return
    refuse_link(path + WORK)
    lock = LocalStore(path).lock_if_free()
    try:
        yield None if lock is None else path + WORK
    finally:
        if lock is not None:
            if not os.path.lexists(path + WORK):
                LocalStore(path).drop_lock()
            lock.close()
