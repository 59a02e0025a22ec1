"""Settings of the whole process. They take effect at once, in all threads.

Assign to the names of this module (``b2array.config.threads = 4``), or change them temporarily with `using`. An invalid
value raises an error. Assigning a smaller `cache_bytes` frees memory; with `using`, the cache keeps its blocks for
later.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, NoReturn

import numpy as np

from b2array import neighbours

__all__ = [
    "Limits",
    "cache_bytes",
    "coalesce_gap",
    "disk_cache",
    "disk_cache_bytes",
    "durable",
    "limits",
    "locks",
    "retries",
    "threads",
    "using",
    "verify",
    "write_buffer_bytes",
]

HEADER_LEN = 32
"""Size in bytes of a chunk's header."""

MAX_CHUNK_NBYTES = 2**31 - 1 - HEADER_LEN
"""The maximum size of the data in a chunk, in bytes, according to the format."""

MAX_BLOCKSIZE = 536_866_816
"""The maximum size of the data in a block, in bytes, according to the format."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum sizes, in bytes, that b2array accepts from a file."""

    chunk_nbytes: int = 2**31
    index_nbytes: int = 2**31
    metadata_nbytes: int = 2**28
    dtype_text: int = 4096


threads: int = os.cpu_count() or 1
"""The number of threads that decode and encode blocks for a call from the main thread. A call from another thread, or
in a process that multiprocessing has started, uses one thread, because several such calls may run at once."""

cache_bytes: int = 128 * 2**20
"""The maximum size of the process-wide cache of decoded blocks, in bytes. 0 turns the cache off."""

write_buffer_bytes: int = 256 * 2**20
"""The size of the buffer for partly changed chunks of a transaction, in bytes. The chunks are encoded when the buffer
is full, and at the commit."""

coalesce_gap: int = 4 * 2**10
"""The maximum gap, in bytes, between ranges of a file that are read in one request."""

disk_cache: str | os.PathLike[str] | None = os.environ.get("B2ARRAY_DISK_CACHE") or None
"""The directory of the cache on disk for bytes from servers, which all processes of a user share; None for no cache.
The environment variable ``B2ARRAY_DISK_CACHE`` sets it for new processes. Reads use the cache; writes do not trust
it."""

disk_cache_bytes: int = 10 * 2**30
"""The maximum size of the cache on disk, in bytes. What was not used for the longest time goes first."""

verify: str = "always"
"""Whether checksums are compared when blocks are read: "always" or "never". The comparison takes a few percent of the
time of a read, even from memory."""

durable: bool | str = "ordered"
"""How much data in local files a power failure may destroy.

"ordered": the last commits, but never an array, because a commit flushes its data to disk before it refers to them.
"full": nothing, because a commit returns only when all of its data are on disk. "off": whole arrays, if they were
written in the last minute, because nothing waits for the disk. True means "full" and False "off"."""

locks: str = "on"
"""Whether writers lock local files: "on" or "off".

"off" is for file systems without locks, and for programs that are alone: nothing then keeps two programs, or two
threads with separate handles, from committing at the same moment, and one of the commits may be lost or damage the
array."""

obstore: bool = True
"""Whether ranges of objects in clouds and on HTTP servers are read through obstore, if it is installed and can send the
same requests as the fsspec client. With False, the fsspec client sends all requests."""

retries: int = 5
"""The maximum number of retries of a commit that conflicts with another writer, and of a failed HTTP request."""

limits: Limits = Limits()
"""Limits for sizes that are read from files."""

_Check = Callable[[Any], bool]
_NUMBER = (int, np.integer)


def _at_least(low: int) -> _Check:
    def check(value: Any) -> bool:
        # Booleans are integers in Python.
        is_number = isinstance(value, _NUMBER) and not isinstance(value, bool)
        return is_number and int(value) >= low

    return check


def _is_path(value: Any) -> bool:
    return value is None or (isinstance(value, str | os.PathLike) and bool(os.fspath(value)))


_SETTINGS: Final[dict[str, tuple[str, _Check]]] = {
    "cache_bytes": ("a number of bytes, 0 or more", _at_least(0)),
    "coalesce_gap": ("a number of bytes, 0 or more", _at_least(0)),
    "disk_cache": ("the path of a directory, or None", _is_path),
    "disk_cache_bytes": ("a number of bytes, 0 or more", _at_least(0)),
    "durable": ("'off', 'ordered' or 'full'", lambda value: value in ("ordered", "full", "off", True, False)),
    "limits": ("a b2array.config.Limits", lambda value: isinstance(value, Limits)),
    "locks": ("'on' or 'off'", lambda value: isinstance(value, str) and value in ("on", "off")),
    "obstore": ("True or False", lambda value: isinstance(value, bool)),
    "retries": ("a whole number, 0 or more", _at_least(0)),
    "threads": ("a whole number, 1 or more", _at_least(1)),
    "verify": ("'always' or 'never'", lambda value: isinstance(value, str) and value in ("always", "never")),
    "write_buffer_bytes": ("a number of bytes, 0 or more", _at_least(0)),
}
"""The possible values of each setting, as text and as a check."""


def _check(name: str, value: Any) -> None:
    if name not in _SETTINGS:
        raise AttributeError(f"b2array.config has no setting {name!r}; there are {', '.join(_SETTINGS)}")
    words, fits = _SETTINGS[name]
    if not fits(value):
        raise ValueError(f"b2array.config.{name} must be {words}, not {value!r}")


_told: Final[dict[str, list[Callable[[], None]]]] = {}


def when_assigned(name: str, tell: Callable[[], None]) -> None:
    """Call a function after each assignment to a setting."""
    _told.setdefault(name, []).append(tell)


_assigned: Final[dict[str, Any]] = {name: globals()[name] for name in _SETTINGS}
"""The settings without the blocks of `using`: the defaults, or what was assigned."""

_blocks: Final[list[dict[str, Any]]] = []
"""The settings of the blocks of `using` that have not ended, in the order in which they began."""

_changing = threading.RLock()
"""Held by the thread that changes settings. Readers need no lock: a setting is a variable of this module."""


class _Config(ModuleType):
    """A module that checks values before they become settings, and tells the functions that depend on them."""

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system assigns names such as __spec__.
        if not name.startswith("__"):
            _check(name, value)
        with _changing:
            _assigned[name] = value
            # The last word counts: blocks that have begun would otherwise undo it when they end.
            for block in _blocks:
                block.pop(name, None)
            super().__setattr__(name, value)
        for tell in _told.get(name, ()):
            tell()

    def __repr__(self) -> str:
        return f"<b2array.config {', '.join(f'{name}={globals()[name]!r}' for name in _SETTINGS)}>"


sys.modules[__name__].__class__ = _Config


def _begin(block: dict[str, Any]) -> None:
    with _changing:
        _blocks.append(block)
        # Bypass `_Config`, so that the cache keeps its blocks for later.
        globals().update(block)


def _end(block: dict[str, Any], names: Iterable[str]) -> None:
    """Remove a block. Blocks need not end in the order in which they began, so the others are put on top again."""
    with _changing:
        _blocks[:] = [each for each in _blocks if each is not block]
        for name in names:
            values = [each[name] for each in _blocks if name in each]
            globals()[name] = values[-1] if values else _assigned[name]


def _after_fork() -> None:
    # Another thread of the parent may have held the lock. The child lacks that thread.
    global _changing
    _changing = threading.RLock()


# Windows has no such function, since it does not fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def using(**settings: Any) -> Iterator[None]:
    """Change settings during a ``with`` block, in all threads.

    Blocks of several threads may overlap: for each setting, the block that began last decides, until it ends. An
    assignment during a block lasts, even after the end of the block.

    Raises
    ------
    TypeError
        There is no such setting.
    ValueError
        The setting cannot have this value.

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
    block = dict(settings)
    try:
        _begin(block)
        yield
    finally:
        _end(block, settings)


def __getattr__(name: str) -> NoReturn:
    hint = neighbours.hint(name, neighbours.CONFIG)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name)
