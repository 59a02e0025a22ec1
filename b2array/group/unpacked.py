"""Groups in a ``.b2z`` file that are made or changed: their members are in a directory next to it until `close`.

The directory is a group as any other, and each change of it is a commit there. `close` packs it: it writes a new
archive next to the old one, renames it, and removes the directory. Until then the old archive stays as it is.

A lock belongs to the directory as long as the writer lives. A note in it says which archive the writer began with, and
at the end which one it has written. So whoever finds the directory without its writer knows how far that one has come:

===========================================  =========================================================
the note                                     the directory holds
===========================================  =========================================================
is missing                                   nothing: the members were being unpacked, or removed
names the archive that is there as written   nothing: the archive has it all
names the archive that is there as begun     changes that were not packed, which somebody may continue
names another archive                        changes of an archive that somebody else has replaced
===========================================  =========================================================
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

from b2array.commit.handle import Handle, Mode
from b2array.commit.one import commit
from b2array.errors import ConflictError, FormatError, ReadOnlyError, UnsupportedError, warn
from b2array.frame import snapshot
from b2array.frame.manifest import EMBEDDED
from b2array.frame.places import ZIP
from b2array.frame.source import FRAME_NAME
from b2array.group import whole
from b2array.group.archive import NOTE, Archive, is_content
from b2array.group.local import LocalGroup, copy_of
from b2array.group.members import Members
from b2array.store import disk
from b2array.store.atomic import AtomicFile, place_beside, require_free
from b2array.store.base import Head, Version
from b2array.store.endings import WORK
from b2array.store.links import refuse_link
from b2array.store.local import LocalStore
from b2array.store.open import open_store

__all__ = ["Unpacked", "abandoned", "is_place", "remove", "unpacked"]

_SUFFIX = ".b2z"
_NOTE_NBYTES = 2**12


class Unpacked(LocalGroup):
    """The members of an archive in the directory of its writer.

    `unpacked` makes one that owns the directory. Copies of it, also in other processes, use the directory and own
    nothing. After `close` it shows the archive.
    """

    _lock: FileIO | None = None
    _begun: Version | None = None
    _archive: Archive | None = None

    @property
    def url(self) -> str:
        """Where the archive is."""
        return self.store.url.removesuffix(WORK)

    def own(self, lock: FileIO, begun: Version | None) -> None:
        """Own the directory, whose lock this is. The writer began with this version of the archive, if there is one."""
        self._lock, self._begun = lock, begun
        self._finalizer = weakref.finalize(self, _forgotten, lock, self.url)

    def members(self) -> Members:
        """Return the path of each member by its name, in the order of the names."""
        return super().members() if self._archive is None else self._archive.members()

    def open(self, path: str, mode: Mode, *, lazy: bool = False) -> Handle:
        """Open a member by its path; after `close` that of the archive, for reading."""
        return super().open(path, mode, lazy=lazy) if self._archive is None else self._archive.open(path, "r")

    def refresh(self) -> None:
        """Read the list of members again when it is next needed."""
        super().refresh() if self._archive is None else self._archive.refresh()

    def require_ledger(self) -> None:
        """Refuse: the list of snapshots lies in a group's manifest, which archives do not have."""
        raise UnsupportedError(
            f"{self.url} is an archive, which has no place for snapshots of the group; its arrays can have their own,"
            " and a directory has both"
        )

    def recover(self) -> None:
        """Complete a commit that was interrupted. ReadOnlyError after `close`: nothing can be changed then."""
        if self._archive is not None:
            raise ReadOnlyError(
                f"{self.url} is closed, and was packed; open_group(url, 'a') opens it for changes again"
            )
        super().recover()

    def close(self) -> None:
        """Pack the members into the archive, in one step, and remove the directory.

        If that fails, the archive is the old one, the directory stays, and `close` can be called again. ConflictError
        says that somebody has replaced the archive.
        """
        super().close()
        lock = self._lock
        if lock is None or lock.closed:  # a copy, or in a forked process
            return
        self.recover()
        self.refresh()
        archive = LocalStore(self.url)
        begun = self._begun
        packed = AtomicFile(archive, overwrite=begun is not None, expected=begun)
        try:
            self._pack(packed.path)
            written = LocalStore(packed.path).stamp("").version
            _write(self.store.url, begun, written)
            packed.finish()
        except BaseException:
            packed.abort()
            raise
        archive.force()  # the new name is on the disk before the directory goes
        self._archive = Archive(self.url, self.storage_options)
        self._release()

    def discard(self) -> None:
        """Remove the directory. The archive stays as it was when the writer opened it."""
        super().close()
        if self._lock is not None and not self._lock.closed:
            self._archive = Archive(self.url, self.storage_options)
            self._release()

    def leave(self) -> str:
        """Leave the directory to whoever continues, and say how; "" if this handle owns nothing."""
        super().close()
        lock, self._lock = self._lock, None
        if lock is None or lock.closed:
            return ""
        self._finalizer.detach()
        lock.close()
        return f"{self.url} was not written. {_offer(self.url)}"

    def _release(self) -> None:
        lock, self._lock = cast(FileIO, self._lock), None
        self._finalizer.detach()
        remove(self.store.url)
        LocalStore(self.url).drop_lock()
        lock.close()

    def _pack(self, path: Path) -> None:
        """Write all files into an archive, uncompressed, so that readers find them there as they are."""
        files = [each for each in self.store.walk() if is_content(each)]
        sparse = {each.removesuffix(f"/{FRAME_NAME}") for each in files if each.endswith(f"/{FRAME_NAME}")}
        alone = [each for each in files if each.rpartition("/")[0] not in sparse]
        with zipfile.ZipFile(path, "w") as archive:
            for each in sorted({*alone, *sparse}, key=lambda name: (name != EMBEDDED, name)):
                if each in sparse:
                    self._pack_sparse(archive, each)
                else:
                    archive.write(Path(self.store.url, each), each)

    def _pack_sparse(self, archive: zipfile.ZipFile, path: str) -> None:
        """Write a member that has a directory of its own as one file: there are no others in archives."""
        held = Handle(snapshot.load(self.store_of(path)), "r")
        with place_beside(str(Path(self.store.url, path))) as frame:
            commit(copy_of(held, {})(frame, overwrite=False, layout="contiguous"))
            archive.write(frame, path)


def is_place(url: str, storage_options: Mapping[str, Any]) -> bool:
    """Whether a URL names an archive that can be made or changed: a file on this computer that ends with ``.b2z``."""
    if not url.endswith(_SUFFIX):
        return False
    store = open_store(url, storage_options=storage_options)
    return isinstance(store, LocalStore) and not Path(store.url).is_dir()


def unpacked(url: str, storage_options: Mapping[str, Any], mode: str, *, resume: bool | None) -> Unpacked:
    """Make the directory of an archive's writer, or take over the one of a writer that did not finish.

    Parameters
    ----------
    url : str
        For which `is_place` is true.
    mode : {"r+", "a", "w", "w-", "x"}
        As for `open_group`.
    resume : bool, optional
        Whether to take over what another writer has left, or to remove it. By default a ConflictError offers both; mode
        "w" removes it.
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
        begun = _version(path, replace=mode == "w")
        home = _begun(path, work, storage_options, mode, begun, resume=resume)
    except BaseException:
        if not os.path.lexists(work):
            LocalStore(path).drop_lock()
        lock.close()
        raise
    home.own(lock, begun)
    return home


def _begun(
    path: str, work: str, storage_options: Mapping[str, Any], mode: str, begun: Version | None, *, resume: bool | None
) -> Unpacked:
    """Do what `unpacked` does, with this version of the archive. The caller holds the lock."""
    left = _left(work, begun)
    if left is None or mode == "w" or resume is False:
        remove(work)
    elif resume is None:
        raise ConflictError(f"{path}: a writer did not finish. {_offer(path)}")
    elif left != _text(begun):
        raise ConflictError(
            f"{path} was replaced after the writer began whose changes are in {work}; resume=False removes them"
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
        _write(work, begun)
    except BaseException:
        remove(work)
        raise
    return home


def _version(path: str, *, replace: bool) -> Version | None:
    """Return the version of the archive, None if there is none; raise FormatError or FileExistsError for others."""
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


def _left(work: str, version: Version | None) -> str | None:
    """Return the version from which a writer began that left changes, unless the archive has them."""
    (head,) = LocalStore(work).head([NOTE], _NOTE_NBYTES)
    if not isinstance(head, Head):
        return None
    try:
        begun, written = msgpack.unpackb(head.data)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    is_note = isinstance(begun, str) and isinstance(written, str)
    return begun if is_note and (version is None or written != _text(version)) else None


def _write(work: str, begun: Version | None, written: Version | None = None) -> None:
    """Write the note: the version of the archive that the writer began with, and the one that it has written."""
    LocalStore(work).replace(NOTE, msgpack.packb([_text(begun), _text(written)]))


def _text(version: Version | None) -> str:
    return str(version or "")


def remove(work: str) -> None:
    """Remove a directory; without its note, remaining files hold nothing. On Windows, files stay that are open."""
    with suppress(FileNotFoundError, NotADirectoryError):
        Path(work, NOTE).unlink()
    shutil.rmtree(work, ignore_errors=True)


def _offer(path: str) -> str:
    return (
        f"The changes are in {path}{WORK}: open_group(url, 'a', resume=True) continues with them, and resume=False or"
        " b2array.vacuum removes them"
    )


def _forgotten(lock: FileIO, path: str) -> None:
    """Say that nobody has closed a group; in a forked process, which does not have the lock, say nothing."""
    if not lock.closed:
        lock.close()
        warn(f"{path}: the group was dropped before it was closed; use it in a with statement. {_offer(path)}")


@contextmanager
def abandoned(url: str, storage_options: Mapping[str, Any]) -> Iterator[str | None]:
    """Return the directory that a writer of an archive left behind; None if there is none or the writer is at work.

    No other writer begins in the ``with`` block.
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
