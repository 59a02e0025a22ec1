"""The summaries in a group's manifest: readers open members with them, and read the members later.

A summary may be out of date: a write to a member by its own URL does not change the manifest. So the summary is
compared with the member before any item is read: on opening if that costs next to nothing, else with the first read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from b2array.engine.handle import Handle
from b2array.engine.snapshot import Snapshot, load, reload, restore, unchanged
from b2array.errors import ConflictError, FormatError, UnsupportedError
from b2array.format import summary
from b2array.format.state import State
from b2array.format.summary import Summary
from b2array.store.base import Mutex, Store

__all__ = ["Promised", "check", "promise"]

_outdated: set[tuple[str, bytes]] = set()
"""Stores and fingerprints of summaries that were out of date: the warning comes only once."""


class Promised(Handle):
    """A handle to a member for reading, which is described already, and read when somebody needs more.

    `keep` keeps the promise: it reads the member, and raises ConflictError if that has changed.
    """

    __slots__ = ("_keep",)

    def __init__(self, store: Store, said: Summary, keep: Callable[[], Snapshot]) -> None:
        self._mode, self._draft, self._keep = "r", None, keep
        self.store, self.described, self.before_commit = store, said, None
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


def promise(store: Store, record: Any, keep: Callable[[Summary], Snapshot]) -> Promised | None:
    """Return a handle to the member that a record describes, or None if the member must be read at once."""
    try:
        said = summary.unpack(record)
    except (FormatError, UnsupportedError):
        return None
    described = said.state.frame
    if not store.can.lock:
        outdated = (store.url, described.fingerprint) in _outdated
        return None if outdated else Promised(store, said, lambda: keep(said))
    # On this computer a look at the member costs little, and what it was then can be read later.
    head = unchanged(store, described, said.header)
    if head is None:
        return None
    data, version = head.data, head.version
    if len(data) < described.frame_len:
        data = memoryview(said.header)
    return Promised(store, said, lambda: restore(store, data, version, head.unique))


def check(held: Snapshot, said: Summary) -> None:
    """Raise ConflictError if a member is not as described. Only its items may differ."""
    if _description(held.state) != _description(said.state):
        _outdated.add((held.url, said.fingerprint))
        raise ConflictError(
            f"{held.url} is not as the manifest of its group describes it, since it was changed by its own URL; open "
            "the group again, and let Group.consolidate() bring the manifest up to date"
        )


def _description(state: State) -> tuple[Any, ...]:
    said = state.annotations
    return state.layout, state.cparams, said.fill, said.dims, state.attrs()
