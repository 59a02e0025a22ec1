"""Memory that a thread uses again and again, because fresh memory takes longer than what is done with it.

A call that comes while another one of the same thread is in the middle of its work, as from the handler of a signal,
must not touch the memory of that one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

__all__ = ["exclusive", "kept", "nested"]

P = ParamSpec("P")
R = TypeVar("R")


class _Workspace(threading.local):
    def __init__(self) -> None:
        self.depth = 0
        self.kept: dict[str, Any] = {}


_workspace = _Workspace()


def kept() -> dict[str, Any]:
    """Return what this thread keeps, by its use.

    Examples
    --------
    >>> exclusive(kept)() is kept(), exclusive(exclusive(kept))() is kept()
    (True, False)
    """
    return _workspace.kept


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
