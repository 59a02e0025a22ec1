"""Memory that a thread uses again and again, because fresh memory takes longer than what is done with it.

A call that comes while another one of the same thread is in the middle of its work, as from the handler of a signal,
must not touch the memory of that one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Buffer", "exclusive", "kept", "memory", "nested"]

P = ParamSpec("P")
R = TypeVar("R")

Buffer = bytes | bytearray | memoryview
"""Bytes that a caller hands in or gets back."""

Bytes = npt.NDArray[np.uint8]


class _Workspace(threading.local):
    def __init__(self) -> None:
        self.depth = 0
        self.kept: dict[str, Bytes] = {}


_workspace = _Workspace()


def kept() -> dict[str, Bytes]:
    """Return what this thread keeps, by its use.

    Examples
    --------
    >>> exclusive(kept)() is kept(), exclusive(exclusive(kept))() is kept()
    (True, False)
    """
    return _workspace.kept


def memory(use: str, nbytes: int, most: int, check: Callable[[], object] | None = None) -> Bytes:
    """Return memory that is used again when this thread asks for the same use next; what is in it is not defined.

    Parameters
    ----------
    use : str
        What it is for.
    nbytes : int
        How much.
    most : int
        More bytes than this are not kept.
    check : callable, optional
        Called before new memory is taken, and raises if it should not be.

    Examples
    --------
    >>> exclusive(lambda: memory("a", 3, 9).base is memory("a", 2, 9).base)()
    True
    """
    mine = kept()
    buf = mine.get(use)
    if buf is None or len(buf) < nbytes:
        if check is not None:
            check()
        buf = np.empty(nbytes, np.uint8)
        if nbytes <= most:
            mine[use] = buf
    return buf[:nbytes]


def nested() -> bool:
    """Say whether a call inside another one is under way in this thread."""
    return _workspace.depth > 1


def exclusive(verb: Callable[P, R]) -> Callable[P, R]:
    """Decorate what uses the memory of its thread: a call inside another one gets memory of its own."""

    @wraps(verb)
    def call(*args: P.args, **options: P.kwargs) -> R:
        outer = _workspace.kept
        if _workspace.depth:
            _workspace.kept = {}
        _workspace.depth += 1
        try:
            return verb(*args, **options)
        finally:
            _workspace.depth -= 1
            _workspace.kept = outer

    return call
