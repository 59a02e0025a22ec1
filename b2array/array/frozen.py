"""What the tasks of a graph share: `Shared` values, pickled once, and `Frozen` arrays, as they are committed now."""

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
"""A process remembers as many shared values: the arrays that its tasks use now, and not all of the past."""
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
        # In a tuple, because the value may be None.
        self._unpickled: tuple[T] | None = (value,)
        self._pickled = b""
        _remember(self)

    @property
    def value(self) -> T:
        """The value. If it came in a pickle, the first use unpickles it."""
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
        # Unpickling an index takes a while: the first task that needs it does so.
        shared._unpickled = None
        shared._pickled = pickled
    return shared


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread. Only the synchronous scheduler runs tasks in the main thread, which would use more."""
    # No other thread notices: only the main thread uses more than one.
    if threads.width() == 1:
        yield
        return
    with config.using(threads=1):
        yield


class Frozen:
    """An array as it is committed now, for graphs. ValueError: a transaction is under way."""

    __slots__ = ("_shared",)

    def __init__(self, array: Readable) -> None:
        pinned: Any = copy(array)
        pinned._handle = array._handle.at_snapshot()
        name = repr(("array", pinned._handle.snapshot.version, *pinned.__dask_tokenize__()))
        self._shared: Shared[Readable] = Shared(name, pinned)

    @property
    def array(self) -> Readable:
        """The handle that reads."""
        return self._shared.value

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in items."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the items."""
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
    """Tell dask how much memory handles take: their index, not their data."""
    sizeof.register(Readable, _sizeof)
    sizeof.register(Frozen, lambda frozen: _sizeof(frozen.array))


def _sizeof(array: Readable) -> int:
    frame = array._handle.frame
    layers = sum(len(content) for _, content in (*frame.metalayers, *frame.vlmetalayers))
    return int(frame.offsets.nbytes) + layers + sys.getsizeof(array)
