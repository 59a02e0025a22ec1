"""`open_store`: the store for a URL, a path or an open file; and functions that split and join URLs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from b2array.errors import UnsupportedError
from b2array.store.base import Store
from b2array.store.file_systems import FILE_SYSTEM, address_of, refuse_mapper
from b2array.store.local_store import LocalStore
from b2array.store.open_file import BinaryFile, OpenFileStore, is_open_file, place_of_file
from b2array.store.secrets import redact_url

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["FILE_SYSTEM", "address_of", "cut", "join_url", "open_store", "with_home"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)(?:://|::)")
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+:)/(?!/)")
_LOCAL = ("file://", "local://")
_OF_BLOCKS = ("blockcache", "cached")
"""Caches that do not record to which state of an object a block belongs: `address_of` bypasses them."""
_KINDS = {
    "filecache": "remote.CachingStore",
    "memory": "shared_memory.SharedMemoryStore",
    "simplecache": "remote.CachingStore",
}
"""Modules and classes by protocol. `open_store` imports a module when a URL needs it, not for local files."""
_CLIENTS = {
    "adlfs.spec": "azure.AzureStore",
    "fsspec.implementations.http": "http.HttpStore",
    "gcsfs.core": "gcs.GcsStore",
    "obstore.fsspec": "obstore.ObstoreStore",
    "s3fs.core": "s3.S3Store",
}
"""Modules and classes by the module of a file system's class, or of one of its base classes."""
_CLASSES = {
    "fsspec.implementations.cached": "remote.CachingStore",
    "fsspec.implementations.memory": "shared_memory.SharedMemoryStore",
}
"""Modules and classes by the module of a file system's class alone, because subclasses may act differently."""
_EXTRAS = {"http": "http", "https": "http", "s3": "s3", "s3a": "s3"}


def open_store(
    url: str | os.PathLike[str] | BinaryFile,
    *,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    within: str | None = None,
) -> Store:
    """Return the store for a URL, for a path in a file system `fs`, or for an open file, without reading anything.

    The URL is a local path (``~`` is the home directory), a ``file://`` URL, or a URL that fsspec understands, such as
    the chain ``simplecache::s3://``. A slash at the end marks a directory or prefix. The options are for fsspec.
    UnsupportedError says that the protocol is unknown, or that its package is not installed.

    A local path may be a link, or lead through links, but not below `within`, the URL of a group around it: links there
    make every call of the store raise FormatError.

    Examples
    --------
    >>> open_store("memory://somewhere/array.b2nd")
    <SharedMemoryStore memory://somewhere/array.b2nd>
    >>> open_store("https://user:password@example.org/a.b2nd?signature=1234")
    <HttpStore https://example.org/a.b2nd>
    """
    if is_open_file(url):
        if storage_options or fs is not None:
            raise TypeError("storage_options and fs are for URLs and paths: an open file needs none")
        place = place_of_file(url)
        if place is None:
            return OpenFileStore(url)
        url, storage_options = place
    refuse_mapper(url)
    if not isinstance(url, str | bytes | os.PathLike):
        raise TypeError(f"expected a URL or a path, found {type(url).__name__}")
    url, storage_options = address_of(url, storage_options, fs)
    scheme = _scheme_of(url)
    if scheme is not None and scheme[1].lower() in _OF_BLOCKS:
        from fsspec.core import url_to_fs

        chained, path = url_to_fs(url, **(storage_options or {}))
        url, storage_options = address_of(path, None, chained)
        scheme = _scheme_of(url)
    own = (storage_options or {}).get(FILE_SYSTEM)
    if own is None and (scheme is None or scheme[0] in _LOCAL):
        return LocalStore(_local_path(url), within=None if within is None else _local_path(within))
    address = os.fspath(url)
    of_class = _file_system(address) if own is None else type(own)
    clients = [_CLIENTS[base.__module__] for base in of_class.__mro__ if base.__module__ in _CLIENTS]
    by_protocol = _KINDS.get(scheme[1].lower()) if scheme else None
    other = by_protocol if own is None else _CLASSES.get(of_class.__module__)
    module, _, kind = (clients[0] if clients else other or "remote.FsspecStore").partition(".")
    remote: Callable[..., Store] = getattr(import_module(f"b2array.store.{module}"), kind)
    return remote(address, storage_options or {})


def _scheme_of(url: str | os.PathLike[str]) -> re.Match[str] | None:
    return _SCHEME.match(url) if isinstance(url, str) else None


def _local_path(url: str | os.PathLike[str]) -> str:
    scheme = _scheme_of(url)
    return with_home(os.fsdecode(url)) if scheme is None else os.fsdecode(url)[scheme.end() :]


def with_home(url: str) -> str:
    """Return a URL, or a path with the home directory in place of ``~``; refuse a URL without its second slash.

    Examples
    --------
    >>> with_home("s3://bucket/a.b2nd")
    's3://bucket/a.b2nd'
    >>> with_home("s3:/bucket/a.b2nd")
    Traceback (most recent call last):
    ValueError: s3:/bucket/a.b2nd: a URL begins with s3://; pathlib makes one slash of two, so write URLs as text
    """
    match = _ONE_SLASH.match(url)
    if match is not None and not os.path.lexists(match[1]):
        hint = "pathlib makes one slash of two, so write URLs as text"
        raise ValueError(f"{redact_url(url)}: a URL begins with {match[1]}//; {hint}")
    return os.path.expanduser(url) if url.startswith("~") else url  # noqa: PTH111 - a Path drops the slash at the end


def cut(url: str) -> tuple[str, str, str]:
    """Split a URL into the part before its path, the path, and the part after it: a query, or the rest of a chain.

    Examples
    --------
    >>> cut("simplecache::s3://bucket/group")
    ('simplecache::s3://', 'bucket/group', '')
    >>> cut("zip://inside/?key=1::/data/archive.zip")
    ('zip://', 'inside', '?key=1::/data/archive.zip')
    """
    links = url.split("::")
    at = next((n for n, link in enumerate(links) if "://" in link), len(links) - 1)
    base, mark, query = links[at].partition("?") if "://" in links[at] else (links[at], "", "")
    scheme, separator, path = base.partition("://") if "://" in base else ("", "", base)
    root = path[: len(path) - len(path.lstrip("/"))]
    front = "::".join([*links[:at], f"{scheme}{separator}{root}"])
    return front, path.strip("/"), "::".join([f"{mark}{query}", *links[at + 1 :]])


def join_url(url: str, path: str) -> str:
    """Return the URL of a path below another URL.

    Examples
    --------
    >>> join_url("/data/group.b2d/", "a/b.b2nd")
    '/data/group.b2d/a/b.b2nd'
    >>> join_url("simplecache::https://example.org/group?key=1", "50%.b2nd")
    'simplecache::https://example.org/group/50%25.b2nd?key=1'
    >>> join_url("zip://inside::file:///archive.zip", "a.b2nd")
    'zip://inside/a.b2nd::file:///archive.zip'
    >>> join_url("memory://", "a.b2nd")
    'memory://a.b2nd'
    """
    front, base, back = cut(url)
    # In HTTP URLs "%", "?" and "#" have a special meaning.
    name = quote(path) if front.rpartition("::")[2].lower() in ("http://", "https://") else path
    return f"{front}{base}{'/' * bool(base)}{name}{back}"


def _file_system(url: str) -> type:
    """Return the class of file systems for a URL, and import the classes for the other links of a chain as well."""
    from fsspec.registry import get_filesystem_class

    kinds: list[type] = []
    for position, part in enumerate(url.split("::")):
        protocol, separator, _ = part.partition("://")
        if not separator and position > 0:
            continue  # a local path at the end of a chain
        try:
            kinds.append(get_filesystem_class(protocol))
        except ValueError:
            raise UnsupportedError(f"{redact_url(url)}: fsspec knows no protocol {protocol!r}") from None
        except ImportError as error:
            extra = _EXTRAS.get(protocol)
            hint = f": pip install 'b2array[{extra}]'" if extra else ""
            raise UnsupportedError(f"{redact_url(url)}: a package is not installed: {error}{hint}") from error
    return kinds[0]
