"""Drawings of groups as text: a tree of members, with shapes, types and sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from b2array.array.array import NDArray
from b2array.array.objects import Items
from b2array.array.schunk import SChunk
from b2array.catalog.manifest import is_attrs
from b2array.display.text_tables import fold, put_title, short, size, table
from b2array.errors import B2ArrayError
from b2array.printable import html_text, printable

__all__ = ["Names", "Tree", "draw_branches", "nest"]

_SHOWN = 100
"""In a group with more members, a tree shows only names: to describe a member, the tree must open it."""


class Names(str):
    """A drawing of names as text, whose `repr` is the text itself. In notebooks its groups can be folded."""

    __slots__ = ("_html",)

    _html: str

    @classmethod
    def of(cls, group: Any, names: Iterable[str]) -> Names:
        """Draw the names of members as a tree below a group, as text and as HTML."""
        tree = nest(dict.fromkeys(names))
        drawing = cls("\n".join([f"/{printable(group.name)}", *draw_branches(tree)]))
        drawing._html = put_title("b2array.Group", group.url, [_html_of(tree)])
        return drawing

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self._html


class Tree:
    """A description of a group, which prints as a tree. To describe members, it opens each path with `open_path`."""

    def __init__(
        self,
        group: Any,
        names: Iterable[str],
        paths: Mapping[str, str],
        open_path: Callable[[str], NDArray | SChunk | Items],
    ) -> None:
        """Read the attributes, and open the members if there are at most 100; keep the errors of damaged members.

        `names` are the names to show, and `paths` the paths of the members by name.
        """
        self._url = group.url
        self._name = group.name
        self._remark = group._remark()
        self._attrs = dict(group.attrs)
        self._disk_cache: str | None = group._disk_cache()
        self._members: dict[str, Any] = dict.fromkeys(filter(None, names))
        if len(paths) > _SHOWN:
            return
        for member, path in paths.items():
            if is_attrs(member):
                continue
            try:
                self._members[member] = open_path(path)
            except (B2ArrayError, OSError) as error:
                # A damaged member must not hide the others: the tree shows the error in its place.
                self._members[member] = error

    def __repr__(self) -> str:
        branches = draw_branches(nest(self._members), _describe)
        lines = [f"/{printable(self._name)}{self._remark}", *branches]
        if self._disk_cache is not None:
            lines.append(f"disk cache: {printable(self._disk_cache)}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        parts = [_html_of(nest(self._members))]
        if self._attrs:
            attrs = {name: short(value) for name, value in self._attrs.items()}
            title = f"attributes ({len(attrs)})"
            parts.insert(0, fold(title, table(attrs)))
        if self._disk_cache is not None:
            parts.append(table({"disk cache": self._disk_cache}))
        return put_title(f"b2array.Group{self._remark}", self._url, parts)


def nest(members: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a mapping of names with slashes into nested mappings, in which the key "" has the value of a name.

    Names with the value None have no such key.
    """
    root: dict[str, Any] = {}
    for name, member in members.items():
        node = root
        for part in filter(None, name.split("/")):
            node = node.setdefault(part, {})
        if member is not None:
            node[""] = member
    return root


def draw_branches(
    tree: Mapping[str, Any],
    describe: Callable[[Any], str] | None = None,
) -> Iterator[str]:
    """Yield the lines of a tree that `nest` made: names, and descriptions of their values."""
    inner = [(printable(name), node) for name, node in tree.items() if name]
    width = max((len(name) for name, _ in inner), default=0)
    for n, (name, node) in enumerate(inner, 1):
        is_last = n == len(inner)
        member = node.get("")
        text = "" if describe is None or member is None else describe(member)
        branch = "└── " if is_last else "├── "
        yield branch + (f"{name:<{width}}  {text}" if text else name)
        margin = "    " if is_last else "│   "
        for line in draw_branches(node, describe):
            yield margin + line


def _describe(member: Any) -> str:
    """Return a line about a member: its shape, type and size, its number of chunks or objects, or why it is damaged."""
    if isinstance(member, NDArray):
        return f"{member.shape} {member.dtype}, {size(member.nbytes)}, stored in {size(member.cbytes)}"
    if isinstance(member, SChunk):
        return f"{member.nchunks} chunks, {size(member.nbytes)}, stored in {size(member.cbytes)}"
    if isinstance(member, Items):
        return f"{len(member)} objects, stored in {size(member.cbytes)}"
    return f"cannot be read: {member}"


def _html_of(tree: Mapping[str, Any]) -> str:
    """Return the members and groups of a tree that `nest` made as HTML."""
    parts = []
    for name, node in tree.items():
        member = node.get("") if name else None
        if isinstance(member, NDArray):
            # Leave out the values: this page is about many arrays.
            title = f"{name}  {_describe(member)}"
            parts.append(fold(title, member._page()))
        elif name and not any(node):
            text = "" if member is None else html_text(_describe(member))
            parts.append(f"<div>{html_text(name)} {text}</div>")
        elif name:
            parts.append(f'<details open=""><summary><b>{html_text(name)}</b></summary>{_html_of(node)}</details>')
    return f'<div style="margin-left: 1.2em">{"".join(parts)}</div>'
