"""The attributes of a group, in a frame without chunks as python-blosc2's ``TreeStore`` has them."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from b2array.array.opening import create_schunk
from b2array.engine.attributes import Layers
from b2array.engine.handle import Handle
from b2array.group.directory import copy_of
from b2array.group.manifest import ATTRS, OTHER
from b2array.group.transaction import Transaction

if TYPE_CHECKING:
    from b2array.group.group import Group

__all__ = ["Attrs"]


class Attrs(MutableMapping[str, Any]):
    """The attributes of a group as a mapping, each assignment to which is a commit."""

    __slots__ = ("_group", "_known")

    def __init__(self, group: Group) -> None:
        self._group = group
        self._known: MutableMapping[str, Any] | None = None

    def _found(self) -> Handle | None:
        home = self._group._home
        path = home.members().get(self._group._prefix + ATTRS)
        return None if path is None else home.open(path, self._group.mode)

    def require(self) -> Handle:
        """Return the frame, to be changed; make one if there is none. Groups that have one exist without members."""
        home, name = self._group._writable(), self._group._prefix + ATTRS
        found = self._found()
        if found is not None and found.mode == "r+":
            return found
        new = create_schunk(chunksize=2**13)._handle
        if found is not None:  # embedded, where it cannot be changed
            with new.transaction():
                Layers(new).update(Layers(found))
            if isinstance(home, Transaction):
                home.remove({name: home.members()[name]})
        # A transaction replaces only what an interrupted one has left, for which nobody could ask here.
        overwrite = isinstance(home, Transaction)
        return home.create(name, OTHER, copy_of(new, home.options["storage_options"]), overwrite=overwrite)

    def _layers(self) -> MutableMapping[str, Any]:
        # Opened once for all, because a loop over the attributes asks for each of them.
        if self._known is None:
            found = self._found()
            self._known = {} if found is None else Layers(found)
        return self._known

    def __getitem__(self, name: str) -> Any:
        return self._layers()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._known = Layers(self.require())
        self._known[name] = value

    def __delitem__(self, name: str) -> None:
        self._group._writable()
        if name not in self:
            raise KeyError(name)
        self._known = Layers(self.require())
        del self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._layers()

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers())

    def __len__(self) -> int:
        return len(self._layers())

    def __repr__(self) -> str:
        return repr(dict(self))
