"""The summaries in a group's manifest: readers open members with them, and read the members later.

A summary describes one state, which it names. On a local disk, where a write to a member by its own URL does not change
the manifest, that is compared with the member; in an object store, with the revision that the manifest lists.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from b2array.commit.handle import Handle
from b2array.errors import ConflictError, FormatError, UnsupportedError
from b2array.format import summary
from b2array.format.state import State
from b2array.format.summary import Summary
from b2array.frame.snapshot import Snapshot, load, reload, restore, unchanged
from b2array.store.base import Mutex, Store

__all__ = ["Promised", "promise", "promise_revision"]

_outdated: set[tuple[str, bytes]] = set()
"""Stores and fingerprints of summaries that were out of date: the warning comes only once."""


class Promised(Handle):
    """A handle to a member for reading, which is described already, and read when somebody needs more.

    `keep` keeps the promise: it reads the member, and raises ConflictError if that has changed.
    """

    __slots__ = ("_keep",)

    def __init__(self, store: Store, said: Summary, keep: Callable[[], Snapshot]) -> None:
        self._mode, self._draft, self._keep = "r", None, keep
        self.store, self.described = store, said
        self.mutex = Mutex()

    def __getattr__(self, name: str) -> Any:
        # Python asks here only for missing attributes: before the promise is kept.
        if name not in ("source", "_snapshot"):
            raise AttributeError(name)
        with self.mutex.held:
            if isinstance(self.described, Summary):
                self._show(self._keep())
        return object.__getattribute__(self, name)

    def refresh(self) -> None:
        """Show the state that is committed now, as described or not."""
        with self.mutex.held:
            try:
                shown = self._snapshot
            except ConflictError:
                self._show(load(self.store))
            else:
                self._show(reload(shown, even_new=True))

    def __reduce__(self) -> tuple[Any, ...]:
        return self.at_snapshot().__reduce__()


def promise(store: Store, record: Any) -> Promised | None:
    """Return a handle to the local member that a record describes, or None if the member must be read at once."""
    said = _readable(record)
    if said is None:
        return None
    # On this computer a look at the member costs little, and what it was then can be read later.
    described = said.state.frame
    head = unchanged(store, described, said.header)
    if head is None:
        return None
    data, version = head.data, head.version
    if len(data) < described.frame_len:
        data = memoryview(said.header)
    return Promised(store, said, lambda: restore(store, data, version, head.unique))


def promise_revision(store: Store, record: Any, revision: str, read: Callable[[], Snapshot]) -> Promised | None:
    """Return a handle to the member that a record describes, if it describes this revision. `read` reads the member.

    Without a revision nothing tells whether the record is out of date. Then the member is compared with it when it is
    read; one that differs is not described again.
    """
    said = _readable(record)
    if said is None or (store.url, said.fingerprint) in _outdated:
        return None
    if not revision:
        return Promised(store, said, lambda: _as_described(read(), said))
    return Promised(store, said, read) if said.fingerprint.hex() == revision else None


def _as_described(held: Snapshot, said: Summary) -> Snapshot:
    """Return a member that is as described; ConflictError if it is not. Only its items may differ."""
    if held.frame.fingerprint != said.fingerprint and _description(held.state) != _description(said.state):
        _outdated.add((held.url, said.fingerprint))
        raise ConflictError(
            f"{held.url} is not as the manifest of its group describes it, since it was changed by its own URL; open "
            "the group again, and let Group.consolidate() bring the manifest up to date"
        )
    return held


def _description(state: State) -> tuple[Any, ...]:
    said = state.annotations
    return state.layout, state.cparams, said.fill, said.dims, state.attrs()


def _readable(record: Any) -> Summary | None:
    with suppress(FormatError, UnsupportedError):  # of a later version, or damaged: then the member itself is read
        return summary.unpack(record)
    return None
