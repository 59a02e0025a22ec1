"""Groups as text: a tree of members with shapes, types and sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from b2array.array.array import NDArray
from b2array.array.objects import Items
from b2array.array.schunk import SChunk
from b2array.display.tables import fold, put_title, short, size, table
from b2array.errors import B2ArrayError
from b2array.frame.manifest import ATTRS
from b2array.printable import html_text, printable

__all__ = ["Names", "Tree", "branches", "nested"]

_SHOWN = 100
"""Larger groups show names only: to describe a member, it must be opened."""


class Names(str):
    """A tree of names as text, which shows itself as it is printed; in notebooks its groups fold."""

    __slots__ = ("_html",)

    _html: str

    @classmethod
    def of(cls, group: Any, names: Iterable[str]) -> Names:
        """Draw names in a group."""
        tree = nested(dict.fromkeys(names))
        found = cls("\n".join([f"/{printable(group.name)}", *branches(tree)]))
        found._html = put_title("b2array.Group", group.url, [_items(tree)])
        return found

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self._html


class Tree:
    """A group that prints as a tree. It opens the members, given by their names and paths, to describe them."""

    def __init__(
        self,
        group: Any,
        names: Iterable[str],
        paths: Mapping[str, str],
        opened: Callable[[str], NDArray | SChunk | Items],
    ) -> None:
        self._url, self._name, self._attrs = group.url, group.name, dict(group.attrs)
        self._members: dict[str, Any] = dict.fromkeys(filter(None, names))
        for member, path in paths.items() if len(paths) <= _SHOWN else ():
            if member.rpartition("/")[2] != ATTRS:
                try:
                    self._members[member] = opened(path)
                except (B2ArrayError, OSError) as error:  # one damaged member does not hide the others
                    self._members[member] = error

    def __repr__(self) -> str:
        return "\n".join([f"/{printable(self._name)}", *branches(nested(self._members), _described)])

    def _repr_html_(self) -> str:
        parts = [_items(nested(self._members))]
        if self._attrs:
            attrs = {name: short(value) for name, value in self._attrs.items()}
            parts.insert(0, fold(f"attributes ({len(attrs)})", table(attrs)))
        return put_title("b2array.Group", self._url, parts)


def nested(members: Mapping[str, Any]) -> dict[str, Any]:
    """Turn names with slashes into nested mappings. The value of a name is under the empty name."""
    root: dict[str, Any] = {}
    for name, member in members.items():
        node = root
        for part in filter(None, name.split("/")):
            node = node.setdefault(part, {})
        if member is not None:
            node[""] = member
    return root


def branches(tree: Mapping[str, Any], described: Callable[[Any], str] | None = None) -> Iterator[str]:
    """Yield the lines of a tree of names, each with its description."""
    inner = [(printable(name), node) for name, node in tree.items() if name]
    width = max((len(name) for name, _ in inner), default=0)
    for n, (name, node) in enumerate(inner, 1):
        last, member = n == len(inner), node.get("")
        text = "" if described is None or member is None else described(member)
        yield ("└── " if last else "├── ") + (f"{name:<{width}}  {text}" if text else name)
        for line in branches(node, described):
            yield ("    " if last else "│   ") + line


def _described(member: Any) -> str:
    if isinstance(member, NDArray):
        return f"{member.shape} {member.dtype}, {size(member.nbytes)}, stored in {size(member.cbytes)}"
    if isinstance(member, SChunk):
        return f"{member.nchunks} chunks, {size(member.nbytes)}, stored in {size(member.cbytes)}"
    if isinstance(member, Items):
        return f"{len(member)} objects, stored in {size(member.cbytes)}"
    return f"cannot be read: {member}"


def _items(tree: Mapping[str, Any]) -> str:
    parts = []
    for name, node in tree.items():
        member = node.get("") if name else None
        if isinstance(member, NDArray):
            # Without values: this page is about many arrays.
            parts.append(fold(f"{name}  {_described(member)}", member._page()))
        elif name and not any(node):
            parts.append(f"<div>{html_text(name)} {html_text(_described(member)) if member is not None else ''}</div>")
        elif name:
            parts.append(f'<details open=""><summary><b>{html_text(name)}</b></summary>{_items(node)}</details>')
    return f'<div style="margin-left: 1.2em">{"".join(parts)}</div>'
