"""Values that many tasks get: pickled once, and unpickled once a process."""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from typing import Any, Generic, TypeVar

__all__ = ["Shared"]

T = TypeVar("T")

_KEPT = 16
_known: OrderedDict[str, Shared[Any]] = OrderedDict()
_mutex = threading.Lock()


class Shared(Generic[T]):
    """A value that never changes, known by a name.

    A scheduler may pickle what a task depends on for every task, and the index of a large array takes a while. In
    a process that has met the value before, unpickling finds that one.

    Parameters
    ----------
    name : str
        No two different values may have the same.
    value : object

    Examples
    --------
    >>> shared = Shared("answer", 42)
    >>> pickle.loads(pickle.dumps(shared)) is shared
    True
    """

    def __init__(self, name: str, value: T) -> None:
        self.name = name
        self.value = value
        self._pickled: bytes | None = None
        _remember(self)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return "b2array.array.shared", self.name

    def __reduce__(self) -> tuple[Any, ...]:
        if self._pickled is None:
            self._pickled = pickle.dumps(self.value, protocol=5)
        return _found, (self.name, self._pickled)


def _remember(shared: Shared[Any]) -> None:
    with _mutex:
        _known[shared.name] = shared
        _known.move_to_end(shared.name)
        while len(_known) > _KEPT:
            _known.popitem(last=False)


def _found(name: str, pickled: bytes) -> Shared[Any]:
    with _mutex:
        shared = _known.get(name)
    if shared is None:
        shared = Shared(name, pickle.loads(pickled))  # noqa: S301 - it is part of a pickle itself
        shared._pickled = pickled
    return shared
