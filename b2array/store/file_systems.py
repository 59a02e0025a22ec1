"""File systems of fsspec that callers pass as ``fs=``, and file systems in forked processes.

Internal functions have no parameter `fs`: the file system is one of the storage options, and its path is a URL.
"""

from __future__ import annotations

import inspect
import os
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from b2array.errors import UnsupportedError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["FILE_SYSTEM", "address_of", "of_this_process", "protocols", "refuse_mapper", "register", "spell_out"]

FILE_SYSTEM: Final = "file system"
"""The storage option for the caller's file system. It has a space, so that it differs from all options of fsspec."""

_connected: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The file systems of fsspec that stores of this process use, by `id`, because equal ones have separate connections."""
_of_parents: dict[int, Any] = {}
"""The file systems that a forked child has from its parent. The child must keep them: without references they would
close their sockets, and the parent's loop, which shares the list of sockets, would wait for answers for ever."""

if hasattr(os, "register_at_fork"):  # absent on Windows, which does not fork
    os.register_at_fork(after_in_child=lambda: _of_parents.update(_connected))


def refuse_mapper(url: object) -> None:
    """Raise TypeError for a mapper of fsspec or a store of zarr; the error says what to give instead."""
    root = getattr(url, "root", None)
    name = type(url).__name__
    if isinstance(root, str) and hasattr(url, "fs"):
        raise TypeError(f"expected a URL or a path, found {name}: give its parts instead, {root!r} and fs=mapper.fs")
    library, _, _ = type(url).__module__.partition(".")
    if library == "zarr":
        raise TypeError(
            f"expected a URL or a path, found {name} of zarr: pass its path or URL instead, with storage_options= or"
            " fs=; an array without a URL is in memory, and so is a group at memory://name"
        )
    if isinstance(url, Mapping):
        raise TypeError(
            f"expected a URL or a path, found {name}: pass the path as url, and the file system as fs=, as in"
            " b2array.open(mapper.root, fs=mapper.fs)"
        )


def address_of(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None,
    fs: AbstractFileSystem | None,
) -> tuple[str | os.PathLike[str], Mapping[str, Any] | None]:
    """Return a URL and storage options that mean the same as a path in a file system of fsspec.

    The options contain the file system, unless it is the local file system. For a directory of another file system
    (``dir``), they contain the other file system. The same is true for a cache of blocks (``blockcache``), which does
    not record to which state of an object a block belongs; b2array's cache does. Without `fs`, both arguments are
    returned unchanged.

    Examples
    --------
    >>> import fsspec
    >>> address_of("group/a.b2nd", None, fsspec.filesystem("dir", path="/data", target_protocol="file"))
    ('/data/group/a.b2nd', None)
    >>> address_of("x/a.b2nd", None, fsspec.filesystem("memory"))[0]
    'memory:///x/a.b2nd'
    """
    refuse_mapper(url)
    if fs is None:
        return url, storage_options
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
    from fsspec.implementations.cached import CachingFileSystem
    from fsspec.implementations.dirfs import DirFileSystem
    from fsspec.implementations.local import LocalFileSystem

    if storage_options:
        raise TypeError("storage_options are for URLs: a file system passed as fs= has its options already")
    if not isinstance(fs, AbstractFileSystem):
        raise TypeError(f"fs must be a file system of fsspec, not {type(fs).__name__}")
    path = os.fsdecode(url)
    slash = "/" if path.endswith("/") else ""
    # A subclass of these may change paths in another way, so compare the exact types.
    while type(fs) in (DirFileSystem, CachingFileSystem, AsyncFileSystemWrapper):
        if type(fs) is DirFileSystem:
            path = fs._join(path)
        fs = fs.sync_fs if type(fs) is AsyncFileSystemWrapper else object.__getattribute__(fs, "fs")
    if type(fs) is LocalFileSystem:
        return fs._strip_protocol(path).rstrip("/") + slash or "/", None
    if isinstance(fs, AsyncFileSystem) and fs.asynchronous:
        raise ValueError("fs was made with asynchronous=True, for use inside a running loop: make one without it")
    stripped = fs._strip_protocol(path)
    # obstore leaves a slash in front, which would name a bucket "".
    if not fs.root_marker:
        stripped = stripped.lstrip("/")
    address = stripped if "://" in stripped else fs.unstrip_protocol(stripped)
    return address.rstrip("/") + slash, {FILE_SYSTEM: fs}


def register(fs: Any) -> None:
    """Record that a store of this process uses a file system."""
    _connected[id(fs)] = fs


def protocols(fs: Any) -> list[str]:
    """Return the protocols of a file system, and of the file systems that it reads through."""
    from fsspec.core import OpenFile

    names: list[str] = []
    while fs is not None:
        protocol = fs.protocol
        names.append(protocol if isinstance(protocol, str) else protocol[0])
        # For a cache, `vars` returns the attributes of the file system behind it.
        inside = object.__getattribute__(fs, "__dict__")
        opened = inside.get("of")
        fs = opened.fs if isinstance(opened, OpenFile) else inside.get("fs")
    return names


def of_this_process(fs: Any) -> Any:
    """Return a file system; if it is from the parent of this forked process, return an equal one."""
    from fsspec.asyn import AsyncFileSystem

    is_own = fs._pid == os.getpid() if isinstance(fs, AsyncFileSystem) else True
    if is_own and _of_parents.get(id(fs)) is not fs:
        return fs
    _of_parents[id(fs)] = fs
    try:
        return pickle.loads(pickle.dumps(fs))  # noqa: S301 - made one line before
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise UnsupportedError(
            f"a file system of the class {type(fs).__name__} does not work in a forked process, because it cannot be"
            f" pickled ({error}): make one there"
        ) from None


def spell_out(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return storage options in which each file system is replaced by its class and arguments.

    Examples
    --------
    >>> import fsspec
    >>> spell_out({FILE_SYSTEM: fsspec.filesystem("memory")})
    {'file system': {'class': 'fsspec.implementations.memory.MemoryFileSystem'}}
    """
    if FILE_SYSTEM not in options:
        return dict(options)
    return {name: _arguments(value) for name, value in options.items()}


def _arguments(value: Any) -> Any:
    from fsspec import AbstractFileSystem

    if not isinstance(value, AbstractFileSystem):
        return value
    kind = type(value)
    names = inspect.signature(kind.__init__).parameters
    arguments = {**dict(zip([*names][1:], value.storage_args, strict=False)), **value.storage_options}
    plain = {name: _arguments(each) for name, each in arguments.items()}
    return {"class": f"{kind.__module__}.{kind.__qualname__}", **plain}
