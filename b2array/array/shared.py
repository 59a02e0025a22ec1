"""Values that many tasks share: pickled once, and unpickled once in each process, when needed."""

from __future__ import annotations

import pickle
import threading
import zlib
from collections import OrderedDict
from typing import Any, Generic, TypeVar

__all__ = ["Shared"]

T = TypeVar("T")

_KEPT = 16
_known: OrderedDict[str, Shared[Any]] = OrderedDict()
_mutex = threading.Lock()


class Shared(Generic[T]):
    """A value that never changes, known by a name, which no different value may have.

    A scheduler may pickle what a task depends on for every task, and the index of a large array takes a while. If the
    process has the value already, unpickling finds it.

    Examples
    --------
    >>> shared = Shared("answer", 42)
    >>> pickle.loads(pickle.dumps(shared)) is shared
    True
    """

    def __init__(self, name: str, value: T) -> None:
        self.name = name
        self._held: tuple[T] | None = (value,)
        self._pickled = b""
        _remember(self)

    @property
    def value(self) -> T:
        """The value. If it came in a pickle, the first use unpickles it."""
        if self._held is None:
            self._held = (pickle.loads(zlib.decompress(self._pickled)),)  # noqa: S301 - it is part of a pickle itself
        return self._held[0]

    def __dask_tokenize__(self) -> tuple[str, str]:
        return "b2array.array.shared", self.name

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._pickled:
            self._pickled = zlib.compress(pickle.dumps(self.value, protocol=5), 1)
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
        shared = Shared[Any](name, None)
        shared._held, shared._pickled = None, pickled
    return shared
