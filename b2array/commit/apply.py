"""The last step of a local group's commit: give members the states that the manifest's log specifies.

`b2array.frame.log` determines the step that an entry still requires; this module takes it. The writer of an entry, the
next writer or both may apply it, even if one of them was killed at any moment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from b2array.commit.leftovers import discard
from b2array.errors import B2ArrayError, ConflictError
from b2array.frame.log import Occupant, StoreOf, action_of, inspect_place
from b2array.frame.manifest import Entry, is_embedded, staged_path
from b2array.frame.snapshot import Snapshot
from b2array.frame.source import FRAME_NAME
from b2array.store.base import MISSING, Store, Version, attempts, too_many_conflicts
from b2array.store.forces import then, together

__all__ = ["Applied", "SeveralStepsError", "apply_entry", "apply_log"]


class SeveralStepsError(Exception):
    """An entry that no manifest lists would take several steps; nothing has happened.

    If the writer were killed between them, nobody would complete them.
    """


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of applying a log.

    Parameters
    ----------
    left : dict of str to Entry
        The entries that cannot be applied now.
    patched : dict of str to Version
        The versions of the files whose headers were written, by path.
    """

    left: dict[str, Entry] = field(default_factory=dict)
    patched: dict[str, Version] = field(default_factory=dict)


def apply_log(
    store_of: StoreOf,
    log: Mapping[str, Entry],
    *,
    remove_embedded: Callable[[str, Entry], None],
    locked: Collection[str] = (),
    states: Mapping[str, Snapshot] = MappingProxyType({}),
) -> Applied:
    """Apply the entries of a log, deletions first; return the failed entries, and the versions of patched files.

    The caller holds the manifest's lock, and the locks of the members `locked`; this takes the lock of each other
    member for its step. `states` has the old states that the caller knows, by path. `remove_embedded` applies the
    entries of embedded members. A damaged member, or an error of the store, stops its own entry only. A new name may
    differ from a deleted one only in case, so deletions come first. The other changes are forced to the disk together;
    if that fails, all of them stay in the log.
    """
    applied = Applied()

    def take(path: str, entry: Entry) -> None:
        """Apply one entry, and note the result in `applied`; never raise an error of the store."""
        try:
            if is_embedded(path):
                remove_embedded(path, entry)
                return
            version = apply_entry(store_of, path, entry, locked=path in locked, state=states.get(path))
            if version is not None:
                applied.patched[path] = version
        except (OSError, B2ArrayError):
            applied.left[path] = entry

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
        applied.left.update(others)
    return applied


def apply_entry(
    store_of: StoreOf,
    path: str,
    entry: Entry,
    *,
    locked: bool = False,
    state: Snapshot | None = None,
    listed: bool = True,
) -> Version | None:
    """Give a member the state of its entry if `b2array.frame.log.TABLE` requires it; remove the files left over.

    This takes the lock of the member unless the caller holds it (`locked`), and reads the member again after a
    conflict. A "patch" and an "index" need no other lock; for the other kinds the caller holds the lock of the
    manifest. `state` is the old state, if the caller knows it. Return the version of the file if this call has written
    its header. FileNotFoundError or NotADirectoryError: the staged files are gone. SeveralStepsError: the entry is not
    `listed` in the manifest, and takes more than one step.
    """
    store = store_of(path) if state is None else state.store
    version = None
    for _ in attempts(store):
        there, action = action_of(entry, store_of, path, store=store, last=state)
        if not action.is_pending:
            break
        waits = not locked and there.name is not None
        with store.lock(there.name or "") if waits else nullcontext():
            if waits and inspect_place(store).state != there.state:
                continue
            try:
                version = _take_step(store_of, path, entry, there, store, listed=listed)
            except (ConflictError, FileExistsError):  # another process was faster
                continue
            except MISSING:
                if inspect_place(store).state == there.state:  # the staged files are gone
                    raise
        break
    else:
        raise too_many_conflicts(store)
    # No other writer holds a lock in these places: one that has waited for the lock of a directory looks up the
    # directory again if it was moved meanwhile.
    if entry.token:
        then(partial(discard, store_of(entry.aside(path)), locked=True))
    if entry.kind == "frame":
        then(partial(discard, _outgoing(store_of, path, entry), locked=True))
    return version


def _outgoing(store_of: StoreOf, path: str, entry: Entry) -> Store:
    """Return the place to which a replaced frame is moved if the system cannot swap two names in one step."""
    return store_of(staged_path(path, entry.token[::-1], sparse=False))


def _take_step(
    store_of: StoreOf,
    path: str,
    entry: Entry,
    there: Occupant,
    store: Store,
    *,
    listed: bool,
) -> Version | None:
    """Patch the header of a member, replace its index, or move its frame in or out; force what was written to the disk.

    This takes one step if the system supports it, and otherwise two if the entry is `listed`. Return the version of a
    patched file, otherwise None.
    """
    if entry.kind == "patch":
        stamp = store.patch("", 0, entry.header)
        store.force()
        return stamp.version
    aside = store_of(entry.aside(path))
    if entry.kind == "index":
        store.adopt(aside.url, FRAME_NAME, exclusive=False)
        store.force()
    elif entry.kind == "delete":
        _take_out(store, aside)
        if not there.name:  # the lock file of a directory was moved with it
            store.drop_lock()
    elif not _is_there(store):
        store.take(aside, may_wait=True)
    elif there.name == "" and inspect_place(aside).name == "":  # a file for a file
        store.adopt(aside.url, "", exclusive=False)
        store.force()
    elif not store.swap(aside):
        if not listed:
            raise SeveralStepsError
        _take_out(store, _outgoing(store_of, path, entry))
        store.take(aside)
    return None


def _take_out(store: Store, aside: Store) -> None:
    """Move a deleted or replaced frame to the place `aside`, which only its entry names.

    FileExistsError: that place was occupied. Its content is removed, so that the next attempt succeeds.
    """
    try:
        aside.take(store)
    except FileExistsError:
        # A writer was killed while the file had both names. Keep only the old name, so that the next attempt succeeds.
        discard(aside, locked=True)
        raise


def _is_there(store: Store) -> bool:
    """Ask the store whether the place is occupied, even by chunks without an index that a killed writer has left."""
    try:
        store.listing()
    except MISSING:
        return False
    return True
