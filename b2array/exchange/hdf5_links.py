"""Following links in an HDF5 file without leaving the file.

HDF5 itself follows links into other files, and reads the items of a dataset from any file, without asking. So a file
from somebody else could make its reader open any of the reader's files.

Source: "HDF5 File Format Specification", sections Link Message, External Data Files Message and Data Layout Message.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from b2array.errors import UnsupportedError

__all__ = ["check_items", "open_node", "require_inside"]

_HINT = "convert reads it with follow_external=True"
_MOST_LINKS = 40


def open_node(h5py: ModuleType, file: Any, path: str, where: str) -> Any:
    """Open the group or dataset at a path, without leaving the file.

    Raises KeyError if the path does not exist, and UnsupportedError if it leads through a link to another file. Errors
    show `where` as the path.
    """
    node = file["/"]
    waiting = path.split("/")
    nlinks = 0
    while waiting:
        part = waiting.pop(0)
        if part in ("", "."):
            continue
        link = _link(h5py, node, part, where)
        if isinstance(link, h5py.ExternalLink):
            raise UnsupportedError(f"{where}: {part!r} is a link to the file {link.filename!r}; {_HINT}")
        if isinstance(link, h5py.SoftLink):
            nlinks += 1
            if nlinks > _MOST_LINKS:
                raise KeyError(f"{path!r} leads through more than {_MOST_LINKS} links")
            waiting = [*link.path.split("/"), *waiting]
            node = file["/"] if link.path.startswith("/") else node
        else:
            node = node[part]
    return node


def _link(h5py: ModuleType, node: Any, name: str, where: str) -> Any:
    """Return the link with a name in a group, without following it; KeyError if there is no such link."""
    link = None
    if isinstance(node, h5py.Group):
        try:
            link = node.get(name, getlink=True)
        except TypeError:
            raise UnsupportedError(f"{where}: {name!r} is a link of a kind that HDF5 does not define") from None
    if link is None:
        raise KeyError(f"there is no {name!r}")
    return link


def check_items(h5py: ModuleType, data: Any, where: str) -> None:
    """Raise UnsupportedError if the items of a dataset are in other files."""
    waiting: list[Any] = [data]
    seen: set[str] = set()
    while waiting:
        part = waiting.pop()
        files = [name for name, _, _ in part.external or ()]
        sources = part.virtual_sources() if part.is_virtual else []
        files += [source.file_name for source in sources if source.file_name != "."]
        if files:
            raise UnsupportedError(f"{where}: its items are in the file {files[0]!r}; {_HINT}")
        for name in {source.dset_name for source in sources} - seen:
            seen.add(name)
            # HDF5 replaces such a pattern by numbers.
            if "%" in name:
                raise UnsupportedError(f"{where}: its items are in all datasets whose names match {name!r}; {_HINT}")
            try:
                inner = open_node(h5py, data.file, name, where)
            except KeyError:
                # For a missing dataset, HDF5 reads the fill value.
                continue
            waiting += [inner] if isinstance(inner, h5py.Dataset) else []


def require_inside(h5py: ModuleType, file: Any, path: str, where: str) -> None:
    """Raise UnsupportedError if a path for new contents leads to another file."""
    try:
        open_node(h5py, file, path, where)
    except KeyError:
        return
