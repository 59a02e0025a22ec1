"""`Members`: the names and paths of a group's members, and the inner groups that the names imply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Self

from b2array.catalog.manifest import ATTRS, is_file_of_group, is_member_name

__all__ = ["Members", "check_new"]


class Members(Mapping[str, str]):
    """A mapping from the names of members, in order, to their paths. Frames of attributes count as members.

    Looking up, adding or removing a name takes the same time in small and large groups.

    Examples
    --------
    >>> members = Members({"air/temperature": "air/temperature.b2nd", "time": "time.b2nd"})
    >>> list(members.children("")), members.is_group("air"), "air" in members
    (['air', 'time'], True, False)
    """

    def __init__(self, paths: Mapping[str, str] = {}) -> None:
        self._paths: dict[str, str] = {}
        # For each group, the number of members at or below each name directly in it. At zero the name disappears.
        self._inner: dict[str, dict[str, int]] = {}
        for name, path in paths.items():
            self.add(name, path)

    def add(self, name: str, path: str) -> None:
        """Add a member, or change the path of a member."""
        if name not in self._paths:
            for group, child in _split(name):
                inner = self._inner.setdefault(group, {})
                inner[child] = inner.get(child, 0) + 1
        self._paths[name] = path

    def remove(self, name: str) -> None:
        """Remove the member with a name, if there is one."""
        if self._paths.pop(name, None) is None:
            return
        for group, child in _split(name):
            inner = self._inner[group]
            inner[child] -= 1
            if not inner[child]:
                del inner[child]
            if not inner:
                del self._inner[group]

    def copy(self) -> Self:
        """Return an independent copy, for changes."""
        new = type(self)()
        new._paths = dict(self._paths)
        new._inner = {group: dict(inner) for group, inner in self._inner.items()}
        return new

    def __getitem__(self, name: str) -> str:
        return self._paths[name]

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._paths))

    def __len__(self) -> int:
        return len(self._paths)

    def __reduce__(self) -> tuple[type[Self], tuple[dict[str, str]]]:
        return type(self), (self._paths,)

    def is_group(self, name: str) -> bool:
        """Return whether a group has this name, that is, whether members are below it; the outermost group is ""."""
        return name in self._inner or not name

    def children(self, group: str) -> Iterator[str]:
        """Yield the names of arrays and groups directly in a group, in the order of the full names.

        The result omits the frame with the group's attributes.
        """
        inner = self._inner.get(group, {})
        front = f"{group}/" if group else ""

        def full(name: str) -> str:
            """Return the key by which a name is sorted."""
            # Full names below a group begin with the name of the group and a slash, which counts in their order.
            return f"{name}/" if front + name in self._inner else name

        names = [name for name in [*inner] if name != ATTRS]  # another thread may change it
        yield from sorted(names, key=full)

    def below(self, name: str) -> dict[str, str]:
        """Return the path of a member, or the paths of all members below a group, by their full names in order."""
        paths = {name: self._paths[name]} if name in self._paths else {}
        groups = [name] if self.is_group(name) else []
        while groups:
            group = groups.pop()
            for child in [*self._inner.get(group, {})]:  # another thread may change it
                full = f"{group}/{child}" if group else child
                if full in self._paths:
                    paths[full] = self._paths[full]
                if full in self._inner:
                    groups.append(full)
        return dict(sorted(paths.items()))


def _split(name: str) -> Iterator[tuple[str, str]]:
    """Yield each group around a member, from the outermost on, with the part of the member's name directly in it."""
    parts = name.split("/")
    groups = ["", *accumulate(parts[:-1], "{}/{}".format)]
    return zip(groups, parts, strict=True)


def check_new(name: str, members: Members, url: str) -> None:
    """Check the name of a new member of the group at a URL. The name of an existing member passes.

    FileExistsError: a group has the name. ValueError: a store cannot hold the name, a part of it names an array or a
    file that is not a member, or it has characters with a meaning in URLs.
    """
    if name in members:
        return
    if name and members.is_group(name):
        raise FileExistsError(f"{url}: there is a group {name!r}")
    refused = f"{url}: {name!r} cannot name a member"
    if not is_member_name(name):
        raise ValueError(refused)
    for outer in accumulate(name.split("/")[:-1], "{}/{}".format):
        if outer in members:
            raise ValueError(f"{refused}: {outer!r} is an array, not a group")
    for text in ("::", "?", "#"):
        if text in name:
            raise ValueError(f"{refused}: {text!r} has a meaning of its own in URLs")
    for part in name.split("/"):
        if is_file_of_group(part):
            raise ValueError(f"{refused}: {part!r} names a file that is not a member")
