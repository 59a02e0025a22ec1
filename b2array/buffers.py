"""Scratch memory that each thread reuses, and the checksum of bytes.

Allocating memory often costs more than the work done in it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

try:
    # This library is ten times as fast as zlib, so verification costs almost nothing. ISA-L is as fast, but leaves the
    # upper halves of vector registers in use: on some processors this slows down NumPy's sums in the caller's code many
    # times.
    from zlib_ng.zlib_ng import crc32
except ImportError:  # the library has no builds for some platforms
    from zlib import crc32

__all__ = ["Buffer", "crc32", "memory_nbytes", "scratch"]

Buffer = bytes | bytearray | memoryview
"""Bytes that a caller passes or receives."""

Bytes = npt.NDArray[np.uint8]


class _ThreadBuffers(threading.local):
    def __init__(self) -> None:
        self.buffers: dict[str, Bytes] = {}


_unused = _ThreadBuffers()


def scratch(use: str, nbytes: int, most: int, check: Callable[[], object] | None = None) -> Bytes:
    """Return memory with undefined contents, which the caller owns as long as the memory or a view of it is referenced.

    When nothing refers to the memory any more, this thread reuses it for the next call with the same `use`. A call that
    interrupts another call in the same thread, for example from a signal handler, receives different memory.

    Parameters
    ----------
    use : str
        The purpose of the memory.
    nbytes : int
        Size in bytes.
    most : int
        The maximum size in bytes of memory that the thread keeps for reuse.
    check : callable, optional
        Called before new memory is allocated; may raise to prevent the allocation.

    Examples
    --------
    >>> first = scratch("example", 3, 9)
    >>> scratch("example", 2, 9).base is first.base
    False
    """
    # Remove the memory, so that a call that interrupts this call does not find it.
    buf = _unused.buffers.pop(use, None)
    if buf is None or len(buf) < nbytes or sys.getrefcount(buf) > _UNUSED:
        if check is not None:
            check()
        buf = np.empty(nbytes, np.uint8)
    lent = buf[:nbytes]
    if len(buf) <= most:
        _unused.buffers[use] = buf
    return lent


def _references_to_a_variable() -> int:
    buf = np.empty(0, np.uint8)
    return sys.getrefcount(buf)


_UNUSED = _references_to_a_variable()
"""The reference count of a buffer in a single local variable, which depends on the version of Python."""


def memory_nbytes() -> int | None:
    """Return the size of the machine's memory in bytes, or None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        # Windows has no such function.
        return None
