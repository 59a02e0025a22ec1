"""`Operators`: arithmetic and comparisons of arrays, which act on their items as NumPy's do, where memory suffices.

There is neither `__array_ufunc__` nor `__array_priority__`: with them, NumPy functions would fail or ``x += a`` would
leave the NumPy array `x` as it was. So NumPy itself reads an array to the right of one of its own.
"""

from __future__ import annotations

import math
import operator
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

__all__ = ["Operators", "free_nbytes"]

Binary = Callable[[Any, Any], Any]


def _compared(verb: Binary) -> Binary:
    return lambda a, other: _applied(verb, a, other)


def _arithmetic(verb: Binary) -> tuple[Binary, Binary, Binary]:
    """Return the methods of an operator with the array on the left, on the right, and in place."""
    return _compared(verb), _compared(lambda a, other: verb(other, a)), _refuse


def _unary(verb: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def operate(a: Operators) -> Any:
        _check(a.nbytes)
        return verb(a[...])

    return operate


def _refuse(a: Any, _: object) -> NoReturn:
    # Python would bind the name to a NumPy array, and what is stored would stay as it was.
    raise TypeError(f"{a!r} does not change in place; a[...] += x reads, computes and writes")


class Operators(ABC):
    """What acts on all items."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Extents in items."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Type of the items."""

    @abstractmethod
    def __getitem__(self, key: Any) -> Any: ...

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of items."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Size of an item in bytes."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Size of all items in bytes, without padding and compression."""
        return self.size * self.itemsize

    __add__, __radd__, __iadd__ = _arithmetic(operator.add)
    __sub__, __rsub__, __isub__ = _arithmetic(operator.sub)
    __mul__, __rmul__, __imul__ = _arithmetic(operator.mul)
    __truediv__, __rtruediv__, __itruediv__ = _arithmetic(operator.truediv)
    __floordiv__, __rfloordiv__, __ifloordiv__ = _arithmetic(operator.floordiv)
    __mod__, __rmod__, __imod__ = _arithmetic(operator.mod)
    __divmod__, __rdivmod__, _ = _arithmetic(divmod)
    __pow__, __rpow__, __ipow__ = _arithmetic(operator.pow)
    __matmul__, __rmatmul__, __imatmul__ = _arithmetic(operator.matmul)
    __lshift__, __rlshift__, __ilshift__ = _arithmetic(operator.lshift)
    __rshift__, __rrshift__, __irshift__ = _arithmetic(operator.rshift)
    __and__, __rand__, __iand__ = _arithmetic(operator.and_)
    __or__, __ror__, __ior__ = _arithmetic(operator.or_)
    __xor__, __rxor__, __ixor__ = _arithmetic(operator.xor)
    __lt__, __le__ = _compared(operator.lt), _compared(operator.le)
    __gt__, __ge__ = _compared(operator.gt), _compared(operator.ge)
    __eq__, __ne__ = _compared(operator.eq), _compared(operator.ne)
    __hash__ = object.__hash__
    __neg__, __pos__ = _unary(operator.neg), _unary(operator.pos)
    __abs__, __invert__ = _unary(operator.abs), _unary(operator.invert)


def _applied(verb: Binary, a: Operators, other: Any) -> Any:
    ours = isinstance(other, Operators)
    if not isinstance(other, Operators | np.ndarray) and getattr(other, "__array_priority__", 0) > 0:
        return NotImplemented  # dask and xarray go on chunk by chunk
    given = other if isinstance(other, Operators | np.ndarray) or not np.ndim(other) else np.asarray(other)
    itemsize = max(a.itemsize, given.itemsize if np.ndim(given) else 0)
    try:
        size = math.prod(np.broadcast_shapes(a.shape, np.shape(given)))
    except ValueError:
        size = a.size  # of matrices, or an error that NumPy raises below
    _check(size * itemsize)
    return verb(a[...], given[...] if ours else given)


def _check(nbytes: int) -> None:
    free = free_nbytes()
    if nbytes > free // 2:
        raise MemoryError(
            f"the result would take {nbytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free: to_dask() computes "
            "chunk by chunk, and so do reductions such as sum() and mean()"
        )


def free_nbytes() -> int:
    """Return how many bytes of memory are free, a very large number if that cannot be told."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1])
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return sys.maxsize
