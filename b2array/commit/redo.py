"""The redo log in a group's manifest: read members through it, and carry it out.

One write of the manifest commits the changes of several members. From then on readers who know the group see them: they
read a changed member through its entry in the log. The writer, or the next one, then carries the entries out, one by
one. An entry names the state that goes and the state that comes. So it can be carried out again and again: where the
new state is there, it is done; where the old one is, it takes effect; where another one is, somebody has changed the
member by other means since, and that stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from b2array.errors import B2ArrayError, ConflictError, FormatError, LimitError, UnsupportedError
from b2array.format.frame import FINGERPRINT_NBYTES
from b2array.format.header import unpack_header
from b2array.format.kept import KEPT
from b2array.frame import snapshot
from b2array.frame.fetch import chunk_number
from b2array.frame.manifest import Entry, Manifest, is_embedded, staged_path
from b2array.frame.snapshot import Snapshot
from b2array.frame.source import FRAME_NAME
from b2array.store.base import (
    MISSING,
    Head,
    Store,
    Version,
    attempts,
    stale_reader,
    too_many_conflicts,
)
from b2array.store.endings import JOURNAL, LOCK, TEMPORARY
from b2array.store.forces import then, together
from b2array.store.spans import Span

__all__ = [
    "Found", "belongs", "carry_out", "discard", "is_abandoned",
    "look", "look_by", "read_member", "settle",
]  # fmt: skip

_DAMAGED = "damaged "

_UNREADABLE = (FormatError, LimitError, UnsupportedError)

StoreOf = Callable[[str], Store]
"""Gives the store of a path in the group."""


class Found(NamedTuple):
    """What is at a path: a frame, a damaged frame, or nothing.

    `state` names its present state: a frame's generation, the version of a damaged one, or "" for nothing. `lasting`
    stays the same when a frame is changed, where b2array made it. `name` is that of the object with its header.
    """

    frame: Snapshot | None
    state: str = ""
    lasting: str = ""
    name: str | None = None
    version: Version | None = None

    @property
    def is_damaged(self) -> bool:
        """Whether this is a frame that cannot be read."""
        return self.state.startswith(_DAMAGED)

    def is_state(self, named: str) -> bool:
        """Whether `state` or `lasting` was this."""
        return named in (self.state, self.lasting)


def look(store: Store) -> Found:
    """Look at what the store of a member holds itself, whatever the redo log says."""
    try:
        held = snapshot.load_published(store)
    except MISSING:
        return Found(None)
    except _UNREADABLE:
        names = [FRAME_NAME] if store.is_prefix else ["", FRAME_NAME]
        for name, head in zip(names, store.head(names, 1), strict=True):
            if isinstance(head, Head):
                version = (head.stamp or store.stamp(name)).version
                state = f"{_DAMAGED}{version or ''}"
                return Found(None, state, state, name, version)
        raise
    identity = held.state.annotations.identity
    lasting = f"id {identity.hex()}" if identity else held.generation
    return Found(held, held.generation, lasting, held.name, held.version)


def read_member(
    store_of: StoreOf, manifest: Manifest, path: str, *, again: Callable[..., Snapshot] | None = None
) -> Snapshot:  # fmt: skip
    """Return the state of a member by the manifest; FileNotFoundError if there is no such member.

    A state that is not carried out yet will be read `again` by that function.
    """
    entry = manifest.redo.get(path)
    store = store_of(path)
    if entry is not None:
        found, is_pending = look_by(entry, store_of, path)
        if is_pending:
            if entry.kind == "delete":
                raise FileNotFoundError(f"{store.url} was deleted")
            try:
                return replace(_to_come(store_of, path, entry, found), again=again)
            except (*MISSING, FormatError):
                # Another process has just carried the entry out.
                if look(store).state == found.state:
                    raise stale_reader(store.url) from None
    return snapshot.load(store)


def _to_come(store_of: StoreOf, path: str, entry: Entry, found: Found) -> Snapshot:
    """Return the state that an entry has for a member."""
    if entry.kind == "header":
        return snapshot.restore(store_of(path), entry.header, found.version)
    staged = store_of(entry.aside(path))
    if entry.kind == "index":
        return snapshot.restore(store_of(path), b"".join(staged.pieces()), found.version)
    held = snapshot.load(staged)
    if held.generation != entry.after:
        # Who carries the entry out lets the frames swap their places, so that the one that goes may be there now.
        raise FileNotFoundError(f"{staged.url} was carried out")
    return held


def settle(
    store_of: StoreOf, log: Mapping[str, Entry], *, remove_embedded: Callable[[str, Entry], None],
    locked: Collection[str] = (),
) -> dict[str, Entry]:  # fmt: skip
    """Carry out a redo log, and return the entries that cannot be carried out now.

    The caller holds the manifest's lock, and those of the members `locked`. A damaged member, or an error of the store,
    stops its own entry only. Deletions come first: a new name may differ from a deleted one in case alone. The others
    are forced to the disk together; if that fails, all of them stay in the log.
    """
    left: dict[str, Entry] = {}

    def take(path: str, entry: Entry) -> None:
        try:
            if is_embedded(path):
                remove_embedded(path, entry)
            else:
                carry_out(store_of, path, entry, locked=path in locked)
        except (OSError, B2ArrayError):
            left[path] = entry

    deletions: dict[str, Entry] = {}
    others: dict[str, Entry] = {}
    for path, entry in log.items():
        (deletions if entry.kind == "delete" else others)[path] = entry
    for path, entry in deletions.items():
        take(path, entry)
    try:
        with together():
            for path, entry in others.items():
                take(path, entry)
    except OSError:
        left.update(others)
    return left


def carry_out(store_of: StoreOf, path: str, entry: Entry, *, locked: bool = False) -> None:
    """Give a member the state of its entry, unless it has that or another one by now.

    The caller holds the manifest's lock; if `locked`, that of the member, too.
    """
    store = store_of(path)
    aside = store_of(entry.aside(path)) if entry.token else store
    old = store_of(staged_path(path, entry.token[::-1], sparse=False)) if entry.kind == "frame" else aside
    for _ in attempts(store):
        found, is_pending = look_by(entry, store_of, path)
        if not is_pending:
            break
        waits = not locked and found.name is not None
        with store.lock(found.name or "") if waits else nullcontext():
            if waits and look(store).state != found.state:
                continue
            try:
                _change_on_disk(store, aside, old, entry, found)
            except (ConflictError, FileExistsError):  # another process was faster
                continue
            except MISSING:
                if look(store).is_state(entry.before):  # what was staged is gone
                    raise
        break
    else:
        raise too_many_conflicts(store)
    # Nobody else takes a lock in these places: who waits for that of a directory that went aside looks for it anew.
    if entry.token:
        then(partial(discard, aside, locked=True))
    if entry.kind == "frame":
        then(partial(discard, old, locked=True))


def look_by(entry: Entry, store_of: StoreOf, path: str) -> tuple[Found, bool]:
    """Look at a member, and say whether its entry waits to be carried out.

    On a local disk the state that goes may come back: a new member is deleted, or somebody restores a backup. So there
    the state that comes must still wait, too.
    """
    store = store_of(path)
    for _ in range(2):
        found = look(store)
        # Where names cannot be swapped in one step, the old frame goes before the new one comes.
        is_between = entry.kind == "frame" and found.name is None
        if not store.can.local or not (is_between or found.is_state(entry.before)):
            return found, found.is_state(entry.before)
        if _is_staged(store, store_of(entry.aside(path)), entry):
            return found, True
        # It may have come between the two looks.
    return found, False


def _is_staged(store: Store, aside: Store, entry: Entry) -> bool:
    """Whether what an entry refers to waits on a local disk."""
    if entry.kind == "header":
        stop = unpack_header(entry.header).frame_len
        (end,) = store.read([Span("", stop - FINGERPRINT_NBYTES, stop)], clip=True)
        return end.hex() == entry.after
    if entry.kind == "index":
        return isinstance(aside.head([""], 1)[0], Head)
    return entry.kind == "delete" or look(aside).state == entry.after


def _change_on_disk(store: Store, aside: Store, old: Store, entry: Entry, found: Found) -> None:
    """Give a member its new state on a local disk, in one step where the system can."""
    if entry.kind == "header":
        store.patch("", 0, entry.header)
        store.force()
    elif entry.kind == "index":
        store.adopt(aside.url, FRAME_NAME, exclusive=False)
        store.force()
    elif entry.kind == "delete":
        aside.take(store)
        if not found.name:  # the lock file of a directory has gone with it
            store.drop_lock()
    elif not _is_there(store):
        store.take(aside, may_wait=True)
    elif found.name == "" and look(aside).name == "":  # a file for a file
        store.adopt(aside.url, "", exclusive=False)
        store.force()
    elif not store.swap(aside):
        old.take(store)
        store.take(aside)


def _is_there(store: Store) -> bool:
    """Whether there is anything: killed writers may have left chunks without an index."""
    try:
        store.listing()
    except MISSING:
        return False
    return True


def discard(store: Store, *, locked: bool = False) -> None:
    """Remove what was staged, or put aside: a file, a directory, or an object. It may be gone.

    Files that are no part of a frame stay, and so does their directory. If `locked`, the caller sees to it that no
    other process is at work there.
    """
    if store.can.local:
        store.remove(FRAME_NAME, belongs, locked=locked)
        store.drop_lock()  # nobody else waits for it: only its writer knows this place
    else:
        store.delete([""])


def is_abandoned(store: Store) -> bool:
    """Whether there is a directory with nothing in it, or with files of late writers.

    They missed that the frame was deleted, and make its directory anew.
    """
    try:
        names = store.walk()
    except MISSING:
        return False
    is_directory = isinstance(store.head([""], 1)[0], IsADirectoryError)
    return is_directory and FRAME_NAME not in names and all(map(belongs, names))


def belongs(name: str) -> bool:
    """Whether a file in the directory of a frame is part of it, or waits there for a commit."""
    return name == FRAME_NAME or chunk_number(name) is not None or name.endswith((LOCK, TEMPORARY, JOURNAL, KEPT))
