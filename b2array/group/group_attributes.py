"""The attributes of a group, in a frame without chunks, as python-blosc2's ``TreeStore`` stores them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from b2array.array.described import Attributes
from b2array.array.schunk import create_schunk
from b2array.catalog.manifest import ATTRS, OTHER
from b2array.commit.handle import Handle, Mode
from b2array.errors import ReadOnlyError
from b2array.group.group_forks import Changes
from b2array.group.group_snapshot import SnapshotHome
from b2array.group.homes import GroupHome, Home
from b2array.group.new_members import copier_of
from b2array.group.transaction import changing

__all__ = ["Attrs", "require_writable"]


def require_writable(home: Home, mode: Mode, url: str) -> GroupHome | Changes:
    """Return the home if its members can be changed; otherwise raise ReadOnlyError, which names the `url`."""
    if isinstance(home, SnapshotHome):
        raise ReadOnlyError(f"{url}: a snapshot can only be read; restore() goes back to it")
    if mode == "r" or not isinstance(home, GroupHome | Changes):
        raise ReadOnlyError(f"{url} was opened for reading; open it with mode='r+' to change it")
    return home


@cache
def _empty_frame() -> Handle:
    """Return the shared, read-only frame without attributes, for a group that has no frame of attributes."""
    return create_schunk(chunksize=2**13)._handle.pinned()


class Attrs(Attributes):
    """The attributes of a group as a mapping. Each assignment is a commit."""

    __slots__ = ("_home", "_mode", "_name")

    def __init__(self, home: Home, prefix: str, mode: Mode) -> None:
        """Make the mapping for the group whose members' names begin with a prefix. This opens nothing."""
        self._home = home
        self._name = prefix + ATTRS
        self._mode: Mode = mode

    def __getattr__(self, name: str) -> Any:
        """Open the frame of attributes when `_handle` is first used, and keep it.

        If the group has no such frame, an empty frame takes its place. Any other name raises AttributeError.
        """
        # Open the frame once: a loop over the attributes reads each of them through it.
        if name != "_handle":
            return super().__getattr__(name)
        self._handle = self._open_frame() or _empty_frame()
        return self._handle

    def _open_frame(self) -> Handle | None:
        """Open the frame of attributes; None if the group has no such frame."""
        path = self._home.members().get(self._name)
        if path is None:
            return None
        return self._home.open(path, self._mode, lazy=True)

    def require(self) -> Handle:
        """Open the frame of attributes for changes; make a missing frame, so that the group exists without members.

        A frame that can only be read, because it is embedded, is replaced by a copy. Making a frame is a commit, or
        part of the transaction under way. Raises ReadOnlyError if the group cannot be changed.
        """
        require_writable(self._home, self._mode, self._home.url)
        frame = self._open_frame()
        if frame is not None and frame.mode == "r+":
            return frame
        return self._make_frame(frame, {})

    def _make_frame(self, embedded: Handle | None, values: Mapping[str, Any]) -> Handle:
        """Make the frame of attributes with these values, and with what the `embedded` frame that it replaces has.

        This is one commit, or part of the transaction under way. Raises ReadOnlyError if the group cannot be changed.
        """
        home = require_writable(self._home, self._mode, self._home.url)
        new = create_schunk(chunksize=2**13)._handle
        attributes = {} if embedded is None else dict(Attributes(embedded))
        Attributes(new).update(attributes | dict(values))
        copy_into = copier_of(new, home.storage_options)
        with changing(home) as changes:
            path = changes.members().get(self._name)
            if embedded is None and path is not None:
                # Another thread has made the frame in the same transaction.
                handle = changes.open(path, "r+")
                Attributes(handle).update(values)
                return handle
            if embedded is not None:
                changes.remove({self._name: home.members()[self._name]})
            # Overwrite: an interrupted writer may have left a frame that the group does not list.
            return changes.create(self._name, OTHER, copy_into, overwrite=True)

    def add(self, others: Attributes) -> None:
        """Add the attributes of another frame in one commit; FileExistsError if the group already has one of them."""
        clash = sorted(self.keys() & others.keys())
        if clash:
            raise FileExistsError(f"{self._home.url}: there is an attribute {clash[0]!r}")
        self.update(others)

    def update(self, other: Any = (), /, **named: Any) -> None:
        """Set several attributes like `dict.update`, in one commit; make the frame of attributes if it is missing.

        Raises ReadOnlyError if the group cannot be changed.
        """
        require_writable(self._home, self._mode, self._home.url)
        values = dict(other, **named)
        frame = self._open_frame()
        if frame is not None and frame.mode == "r+":
            self._handle = frame
            super().update(values)
        elif values:
            self._handle = self._make_frame(frame, values)

    def __delitem__(self, name: str) -> None:
        """Delete an attribute in one commit; KeyError for a missing one, ReadOnlyError if the group cannot change."""
        require_writable(self._home, self._mode, self._home.url)
        if name not in self:
            raise KeyError(name)
        self._handle = self.require()
        super().__delitem__(name)
