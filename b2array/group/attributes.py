"""The attributes of a group, in a frame without chunks as python-blosc2's ``TreeStore`` has them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from b2array.array.described import Attributes
from b2array.array.schunk import create_schunk
from b2array.commit.handle import Handle, Mode
from b2array.errors import ReadOnlyError
from b2array.frame.manifest import ATTRS, OTHER
from b2array.group.archive import Archive
from b2array.group.changing import changing
from b2array.group.embedded import EmbedFile
from b2array.group.fork import Changes
from b2array.group.kept import Moment
from b2array.group.listed import AnyGroup
from b2array.group.local import copy_of

__all__ = ["Attrs", "Home", "writable"]

Home = AnyGroup | Archive | EmbedFile | Changes | Moment
"""Where the members of a group are."""


def writable(home: Home, mode: Mode, url: str) -> AnyGroup | Changes:
    """Return the home of members that can be changed; raise ReadOnlyError for others."""
    if isinstance(home, Moment):
        raise ReadOnlyError(f"{url}: a snapshot can only be read; restore() goes back to it")
    if mode == "r" or isinstance(home, Archive | EmbedFile):
        raise ReadOnlyError(f"{url} was opened for reading; open it with mode='r+' to change it")
    return home


@cache
def _nothing() -> Handle:
    """Return an empty frame, for reading, in place of one that is missing."""
    return create_schunk(chunksize=2**13)._handle.at_snapshot()


class Attrs(Attributes):
    """The attributes of a group as a mapping. Each assignment is a commit."""

    __slots__ = ("_home", "_mode", "_name")

    def __init__(self, home: Home, prefix: str, mode: Mode) -> None:
        self._home = home
        self._name = prefix + ATTRS
        self._mode: Mode = mode

    def __getattr__(self, name: str) -> Any:
        # The frame is opened once, because a loop over the attributes asks for each of them.
        if name != "_handle":
            raise AttributeError(name)
        self._handle = self._found() or _nothing()
        return self._handle

    def _found(self) -> Handle | None:
        path = self._home.members().get(self._name)
        return None if path is None else self._home.open(path, self._mode, lazy=True)

    def require(self) -> Handle:
        """Return the frame for changes, or make it. A group that has one exists even without members."""
        writable(self._home, self._mode, self._home.url)
        frame = self._found()
        return frame if frame is not None and frame.mode == "r+" else self._make(frame, {})

    def _make(self, embedded: Handle | None, values: Mapping[str, Any]) -> Handle:
        """Make the frame with these attributes, and the attributes of an embedded frame, which cannot be changed."""
        home = writable(self._home, self._mode, self._home.url)
        new = create_schunk(chunksize=2**13)._handle
        attributes = {} if embedded is None else dict(Attributes(embedded))
        Attributes(new).update(attributes | dict(values))
        with changing(home) as changes:
            if embedded is not None:
                changes.remove({self._name: home.members()[self._name]})
            # An interrupted writer may have left one that the group does not list.
            return changes.create(self._name, OTHER, copy_of(new, home.storage_options), overwrite=True)

    def add(self, others: Attributes) -> None:
        """Add attributes; FileExistsError if one of them is there already."""
        if clash := sorted(self.keys() & others.keys()):
            raise FileExistsError(f"{self._home.url}: there is an attribute {clash[0]!r}")
        self.update(others)

    def update(self, other: Any = (), /, **named: Any) -> None:
        """Set several attributes, as `dict.update`, in one commit."""
        writable(self._home, self._mode, self._home.url)
        values = dict(other, **named)
        frame = self._found()
        if frame is not None and frame.mode == "r+":
            self._handle = frame
            super().update(values)
        elif values:
            self._handle = self._make(frame, values)

    def __delitem__(self, name: str) -> None:
        writable(self._home, self._mode, self._home.url)
        if name not in self:
            raise KeyError(name)
        self._handle = self.require()
        super().__delitem__(name)
