"""Values that the tasks of a graph share: `Shared` values, pickled once, and `Frozen` arrays in the committed state."""

from __future__ import annotations

import pickle
import sys
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, Generic, TypeVar

import numpy as np

from b2array import config, threads
from b2array.compute.readable import Readable
from b2array.printable import printable

__all__ = ["Frozen", "Shared", "one_thread", "register_sizeof"]

T = TypeVar("T")

_KEPT = 16
"""The number of shared values that a process keeps: enough for present tasks, but not for all past tasks."""
_known: OrderedDict[str, Shared[Any]] = OrderedDict()
_mutex = threading.Lock()


class Shared(Generic[T]):
    """A value that never changes, and its unique name.

    A scheduler may pickle the dependencies of a task again for every task, which is slow for the index of a large
    array. If the process already has the value, unpickling reuses it.

    Examples
    --------
    >>> shared = Shared("answer", 42)
    >>> pickle.loads(pickle.dumps(shared)) is shared
    True
    """

    def __init__(self, name: str, value: T) -> None:
        self.name = name
        # Use a tuple, because the value may be None.
        self._unpickled: tuple[T] | None = (value,)
        self._pickled = b""
        _remember(self)

    @property
    def value(self) -> T:
        """The value. After a transfer as a pickle, the first use unpickles it."""
        if self._unpickled is None:
            pickled = zlib.decompress(self._pickled)
            self._unpickled = (pickle.loads(pickled),)  # noqa: S301 - it is part of a pickle itself
        (value,) = self._unpickled
        return value

    def __dask_tokenize__(self) -> tuple[str, str]:
        return "b2array.array.frozen", self.name

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._pickled:
            self._pickled = zlib.compress(pickle.dumps(self.value, protocol=5), 1)
        return _load, (self.name, self._pickled)


def _remember(shared: Shared[Any]) -> None:
    with _mutex:
        _known[shared.name] = shared
        _known.move_to_end(shared.name)
        while len(_known) > _KEPT:
            _known.popitem(last=False)


def _load(name: str, pickled: bytes) -> Shared[Any]:
    with _mutex:
        shared = _known.get(name)
    if shared is None:
        shared = Shared[Any](name, None)
        # To unpickle an index is slow, so only the first task that needs it does so.
        shared._unpickled = None
        shared._pickled = pickled
    return shared


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread. This matters for the synchronous scheduler, whose tasks run in the main thread."""
    # Other threads are not affected: only the main thread uses more than one thread.
    if threads.width() == 1:
        yield
        return
    with config.using(threads=1):
        yield


class Frozen:
    """An array in its committed state, for graphs. Raises ValueError if a transaction is under way."""

    __slots__ = ("_shared",)

    def __init__(self, array: Readable) -> None:
        pinned: Any = copy(array)
        pinned._handle = array._handle.pinned()
        name = repr(("array", pinned._handle.revision.version, *pinned.__dask_tokenize__()))
        self._shared: Shared[Readable] = Shared(name, pinned)

    @property
    def array(self) -> Readable:
        """The handle that reads."""
        return self._shared.value

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape: extents in items."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the items."""
        return self.array.dtype

    def __getitem__(self, key: Any) -> Any:
        with one_thread():
            return self.array[key]

    def __deepcopy__(self, _: object) -> Frozen:
        return self  # it does not change

    def __repr__(self) -> str:
        return f"<b2array.Frozen {printable(self.array._handle.url)}>"

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return self.array.__dask_tokenize__()


def register_sizeof(sizeof: Any) -> None:
    """Tell dask the memory use of handles: the size of the index, without the data."""
    sizeof.register(Readable, _sizeof)
    sizeof.register(Frozen, lambda frozen: _sizeof(frozen.array))


def _sizeof(array: Readable) -> int:
    frame = array._handle.frame
    layers = sum(len(content) for _, content in (*frame.metalayers, *frame.vlmetalayers))
    return int(frame.offsets.nbytes) + layers + sys.getsizeof(array)
