"""Settings of the whole process. They take effect at once.

Assign to the names of this module (``b2array.config.threads = 4``), or change them for a while with `using`. A value
that a setting cannot have raises an error. A smaller `cache_bytes` frees memory when it is assigned; with `using` the
cache keeps its blocks for later.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

import numpy as np

__all__ = [
    "Limits",
    "cache_bytes",
    "coalesce_gap",
    "durable",
    "limits",
    "retries",
    "threads",
    "using",
    "verify",
    "write_buffer_bytes",
]

HEADER_LEN = 32
"""Size in bytes of a chunk's header."""

MAX_CHUNK_NBYTES = 2**31 - 1 - HEADER_LEN
"""The most bytes of data that the format allows in a chunk."""

MAX_BLOCKSIZE = 536_866_816
"""The most bytes of data that the format allows in a block."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes that a file cannot make us exceed, whatever it claims."""

    chunk_nbytes: int = 2**31
    index_nbytes: int = 2**31
    metadata_nbytes: int = 2**28
    dtype_text: int = 4096


threads: int = os.cpu_count() or 1
"""Threads that decode and encode blocks for a call from the main thread. A call from another thread, or in a process
that multiprocessing has started, uses one, because there may be several of those."""

cache_bytes: int = 128 * 2**20
"""Memory that the process-wide cache of decoded blocks may take; 0 turns it off, and frees it if it is assigned."""

write_buffer_bytes: int = 256 * 2**20
"""Memory for the chunks that a transaction changes in part. They are encoded when it is full, and at the commit."""

coalesce_gap: int = 4 * 2**10
"""Ranges of a file that lie closer together than this many bytes are read in one request."""

verify: str = "always"
"""Whether checksums are compared when blocks are read: "always" or "never". It takes a few percent of the time of a
read, even of bytes that come from memory."""

durable: bool | str = "ordered"
"""What a power failure may take from local files.

"ordered": the last commits, but never an array, because a commit forces its data to the disk before it refers to them.
"full": nothing, because a commit returns when the disk has all of it. "off": whole arrays, if they were written in the
last minute, because nothing waits for the disk. True means "full" and False "off"."""

obstore: bool = True
"""Whether ranges of objects in clouds and on HTTP servers are read through obstore, where it is installed and can send
the same requests as the client of fsspec. False leaves all of them to that client."""

retries: int = 5
"""How often to try a commit again when another writer came first, and a request to an HTTP server that failed."""

limits: Limits = Limits()
"""Bounds on sizes that are read from files."""

_Check = Callable[[Any], bool]
_NUMBER = (int, np.integer)


def _at_least(low: int) -> _Check:
    def check(value: Any) -> bool:
        # Booleans are integers in Python.
        is_number = isinstance(value, _NUMBER) and not isinstance(value, bool)
        return is_number and int(value) >= low

    return check


_SETTINGS: Final[dict[str, tuple[str, _Check]]] = {
    "cache_bytes": ("a number of bytes, 0 or more", _at_least(0)),
    "coalesce_gap": ("a number of bytes, 0 or more", _at_least(0)),
    "durable": ("'off', 'ordered' or 'full'", lambda value: value in ("ordered", "full", "off", True, False)),
    "limits": ("a b2array.config.Limits", lambda value: isinstance(value, Limits)),
    "obstore": ("True or False", lambda value: isinstance(value, bool)),
    "retries": ("a whole number, 0 or more", _at_least(0)),
    "threads": ("a whole number, 1 or more", _at_least(1)),
    "verify": ("'always' or 'never'", lambda value: isinstance(value, str) and value in ("always", "never")),
    "write_buffer_bytes": ("a number of bytes, 0 or more", _at_least(0)),
}
"""The possible values of each setting, in words and as a test."""


def _check(name: str, value: Any) -> None:
    if name not in _SETTINGS:
        raise AttributeError(f"b2array.config has no setting {name!r}; there are {', '.join(_SETTINGS)}")
    words, fits = _SETTINGS[name]
    if not fits(value):
        raise ValueError(f"b2array.config.{name} must be {words}, not {value!r}")


_told: Final[dict[str, list[Callable[[], None]]]] = {}


def when_assigned(name: str, tell: Callable[[], None]) -> None:
    """Call a function each time that a setting is assigned, after it has its new value."""
    _told.setdefault(name, []).append(tell)


class _Config(ModuleType):
    """A module that checks values before they become settings, and tells the functions that depend on them."""

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system sets names such as __spec__.
        if not name.startswith("__"):
            _check(name, value)
        super().__setattr__(name, value)
        for tell in _told.get(name, ()):
            tell()

    def __repr__(self) -> str:
        return f"<b2array.config {', '.join(f'{name}={globals()[name]!r}' for name in _SETTINGS)}>"


sys.modules[__name__].__class__ = _Config


@contextmanager
def using(**settings: Any) -> Iterator[None]:
    """Change settings during a ``with`` block.

    Raises
    ------
    TypeError
        There is no such setting.
    ValueError
        It cannot have this value.

    Examples
    --------
    >>> from b2array import config
    >>> with config.using(cache_bytes=0):
    ...     config.cache_bytes
    0
    """
    unknown = sorted(set(settings) - set(_SETTINGS))
    if unknown:
        raise TypeError(f"unknown settings {', '.join(unknown)}; there are {', '.join(_SETTINGS)}")
    for name, value in settings.items():
        _check(name, value)
    before = {name: globals()[name] for name in settings}
    # Past `_Config`, so that the cache keeps its blocks for later.
    globals().update(settings)
    try:
        yield
    finally:
        globals().update(before)
