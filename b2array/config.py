"""Settings of the whole process, read at the moment they are needed.

Assign to the names of this module (``b2array.config.threads = 4``), or change them for a while with `using`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Limits", "cache_bytes", "coalesce_gap", "durable", "limits", "retries", "threads", "using", "verify",
    "write_buffer_bytes",
]  # fmt: skip

HEADER_LEN = 32
"""Size in bytes of a chunk's header."""

MAX_CHUNK_NBYTES = 2**31 - 1 - HEADER_LEN
"""The most bytes of data that the format allows in a chunk."""

MAX_BLOCKSIZE = 536_866_816
"""The most bytes of data that the format allows in a block."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes that no file may make us exceed, whatever it claims."""

    chunk_nbytes: int = 2**31
    index_nbytes: int = 2**31
    metadata_nbytes: int = 2**28
    dtype_text: int = 4096


threads: int = os.cpu_count() or 1
"""Threads that decode and encode blocks for calls from the main thread of a program. Calls from other threads, and in
processes that multiprocessing has started, use one: there may be several of those."""

cache_bytes: int = 64 * 2**20
"""Size of the process-wide cache of decoded blocks; 0 turns it off."""

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

retries: int = 5
"""How often a commit is tried again when another writer came first."""

limits: Limits = Limits()
"""Bounds on sizes that are read from files."""

_NAMES = ("cache_bytes", "coalesce_gap", "durable", "limits", "retries", "threads", "verify", "write_buffer_bytes")


@contextmanager
def using(**settings: Any) -> Iterator[None]:
    """Change settings for the length of a ``with`` block.

    Examples
    --------
    >>> from b2array import config
    >>> with config.using(cache_bytes=0):
    ...     config.cache_bytes
    0
    """
    unknown = sorted(set(settings) - set(_NAMES))
    if unknown:
        raise TypeError(f"unknown settings {', '.join(unknown)}; there are {', '.join(_NAMES)}")
    before = {name: globals()[name] for name in settings}
    globals().update(settings)
    try:
        yield
    finally:
        globals().update(before)
