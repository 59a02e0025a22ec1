"""Scratch memory that each thread uses again: fresh memory often costs more than the work in it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["Buffer", "memory_nbytes", "scratch"]

Buffer = bytes | bytearray | memoryview
"""Bytes that a caller hands in or gets back."""

Bytes = npt.NDArray[np.uint8]


class _ThreadBuffers(threading.local):
    def __init__(self) -> None:
        self.buffers: dict[str, Bytes] = {}


_unused = _ThreadBuffers()


def scratch(use: str, nbytes: int, most: int, check: Callable[[], object] | None = None) -> Bytes:
    """Return memory with undefined contents. It is yours for as long as you hold it or a view of it.

    When nothing refers to the memory any more, this thread uses it again for the next call with the same `use`. A call
    that interrupts its own thread, say from a signal handler, gets other memory.

    Parameters
    ----------
    use : str
        What the memory is for.
    nbytes : int
        Size in bytes.
    most : int
        The thread does not keep larger memory.
    check : callable, optional
        Called before new memory is allocated; raises to prevent it.

    Examples
    --------
    >>> first = scratch("example", 3, 9)
    >>> scratch("example", 2, 9).base is first.base
    False
    """
    # Taken out, so that a call that interrupts this one does not find it.
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
"""The reference count of a buffer in a single local variable. It depends on the version of Python."""


def memory_nbytes() -> int | None:
    """Return how many bytes of memory the machine has, where the system tells it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        # Windows has no such function.
        return None
