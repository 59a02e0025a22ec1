"""`Operators`: arithmetic, comparisons and conversions of all items, as in NumPy, if the memory suffices.

`Operators` defines neither `__array_ufunc__` nor `__array_priority__`: with them, NumPy functions would fail, or
``x += a`` would not change the NumPy array `x`. So if a NumPy array is on the left, NumPy reads the array on the right.
"""

from __future__ import annotations

import math
import operator
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

import numpy as np

from b2array import neighbours

__all__ = ["Operators", "free_nbytes"]

Unary = Callable[[Any], Any]
Binary = Callable[[Any, Any], Any]


def _methods(verb: Binary) -> tuple[Binary, Binary, Binary]:
    """Return the methods of an operator with the array on the left, on the right, and in place."""

    def on_the_right(a: Any, b: Any) -> Any:
        return _apply(lambda x, y: verb(y, x), a, b)

    return _comparison(verb), on_the_right, _refuse


def _comparison(verb: Binary) -> Binary:
    """Return the method of an operator with the array on the left; Python itself reverses comparisons."""

    def on_the_left(a: Any, b: Any) -> Any:
        return _apply(verb, a, b)

    return on_the_left


def _unary(verb: Unary) -> Unary:
    return lambda a: _apply(lambda x, _: verb(x), a, 0)


def _convert(verb: Unary) -> Unary:
    def convert(a: Any) -> Any:
        if a.size == 1:
            return verb(a[...])
        # This raises NumPy's error without reading the array.
        zero = np.zeros((), a.dtype)
        return verb(np.broadcast_to(zero, a.shape))

    return convert


def _refuse(a: Any, _: object) -> NoReturn:
    # Python would bind the name to a NumPy array, and the stored array would not change.
    raise TypeError(f"{a!r} does not change in place; a[...] += x reads, computes and writes")


class Operators:
    """The operators, and the conversions to numbers, which act on all items."""

    __slots__ = ()

    __getitem__: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in items."""
        raise NotImplementedError

    __add__, __radd__, __iadd__ = _methods(operator.add)
    __sub__, __rsub__, __isub__ = _methods(operator.sub)
    __mul__, __rmul__, __imul__ = _methods(operator.mul)
    __truediv__, __rtruediv__, __itruediv__ = _methods(operator.truediv)
    __floordiv__, __rfloordiv__, __ifloordiv__ = _methods(operator.floordiv)
    __mod__, __rmod__, __imod__ = _methods(operator.mod)
    __divmod__, __rdivmod__, _ = _methods(divmod)
    __pow__, __rpow__, __ipow__ = _methods(operator.pow)
    __matmul__, __rmatmul__, __imatmul__ = _methods(operator.matmul)
    __lshift__, __rlshift__, __ilshift__ = _methods(operator.lshift)
    __rshift__, __rrshift__, __irshift__ = _methods(operator.rshift)
    __and__, __rand__, __iand__ = _methods(operator.and_)
    __or__, __ror__, __ior__ = _methods(operator.or_)
    __xor__, __rxor__, __ixor__ = _methods(operator.xor)
    __lt__ = _comparison(operator.lt)
    __le__ = _comparison(operator.le)
    __gt__ = _comparison(operator.gt)
    __ge__ = _comparison(operator.ge)
    __eq__ = _comparison(operator.eq)
    __ne__ = _comparison(operator.ne)
    # A class that defines __eq__ loses its hash; as keys of a dictionary, arrays are compared by identity.
    __hash__ = object.__hash__
    __neg__ = _unary(operator.neg)
    __pos__ = _unary(operator.pos)
    __abs__ = _unary(operator.abs)
    __invert__ = _unary(operator.invert)
    __bool__ = _convert(bool)
    __int__ = _convert(int)
    __float__ = _convert(float)
    __complex__ = _convert(complex)
    __index__ = _convert(operator.index)

    def __contains__(self, item: object) -> bool:
        return bool(np.any(self == item))

    def item(self, *args: SupportsIndex) -> Any:
        """Return one item as a Python scalar, as `numpy.ndarray.item` does.

        Without arguments, the array must have a single item. One number is a position in C order, more are an index.

        Examples
        --------
        >>> import b2array
        >>> a = b2array.asarray([[1, 2], [3, 4]])
        >>> a.item(2), a.item(1, 1), a.view[0, 0].item()
        (3, 4, 1)
        """
        shape = self.shape
        if not args and math.prod(shape) == 1:
            return self[...].item()
        # NumPy checks the arguments without an array of that size in memory.
        np.broadcast_to(np.int8(0), shape).item(*args)
        if len(args) == len(shape):
            index = args
        else:
            place = operator.index(args[0]) % math.prod(shape)
            index = np.unravel_index(place, shape)
        return self[tuple(map(operator.index, index))].item()

    def tolist(self) -> Any:
        """Return all items as nested lists of Python scalars, like `numpy.ndarray.tolist`."""
        return _apply(lambda x, _: x, self, 0).tolist()

    def clip(self, min: Any = None, max: Any = None, out: None = None, **options: Any) -> Any:
        """Return all items within bounds, like `numpy.clip`, in a NumPy array.

        Examples
        --------
        >>> import b2array
        >>> np.clip(b2array.asarray([1, 5, 9]), 2, 6)
        array([2, 5, 6])
        """
        _refuse_out(out)
        low = min[...] if isinstance(min, Operators) else min
        high = max[...] if isinstance(max, Operators) else max

        def limit(items: Any, _: object) -> Any:
            return np.clip(items, low, high, **options)

        return _apply(limit, self, 0)

    def round(self, decimals: SupportsIndex = 0, out: None = None) -> Any:
        """Return all items rounded to a number of decimals, like `numpy.round`, in a NumPy array.

        Examples
        --------
        >>> import b2array
        >>> b2array.asarray([1.25, 2.718]).round(1)
        array([1.2, 2.7])
        """
        _refuse_out(out)
        return _apply(lambda x, _: np.round(x, decimals), self, 0)

    if not TYPE_CHECKING:  # a type checker would accept every name as an attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an AttributeError, with a hint if the name is an attribute of NumPy, zarr or xarray arrays."""
            kind = type(self).__name__
            hint = neighbours.hint(name, neighbours.ARRAY)
            if not hint and not name.startswith("_") and hasattr(np.ndarray, name):
                hint = ": a[...] reads the items as a NumPy array, which has it; a.to_dask() computes in pieces"
            raise AttributeError(f"{kind!r} object has no attribute {name!r}{hint}", name=name, obj=self)


def _refuse_out(out: None) -> None:
    if out is not None:
        raise TypeError("out must be None: the result is a new array")


def _apply(verb: Binary, a: Any, other: Any) -> Any:
    is_stored = isinstance(other, Operators)
    if not is_stored and not isinstance(other, np.ndarray):
        if getattr(other, "__array_priority__", 0) > 0:
            return NotImplemented  # dask and xarray then work chunk by chunk
        if np.ndim(other):
            other = np.asarray(other)
    try:
        shape = np.broadcast_shapes(a.shape, np.shape(other))
        size = math.prod(shape)
    except ValueError:
        size = a.size  # matrices, or shapes for which NumPy raises below
    # A Python number such as 2 is converted to the array's type, even if its own type is wider.
    other_itemsize = other.itemsize if np.ndim(other) else 0
    nbytes = size * max(a.itemsize, other_itemsize)
    free = free_nbytes()
    # Half of the free memory, because the operands need memory as well as the result.
    if nbytes > free // 2:
        raise MemoryError(
            f"the result would take {nbytes / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free: to_dask() computes "
            "chunk by chunk, and so do reductions such as sum() and mean()"
        )
    right = other[...] if is_stored else other
    return verb(a[...], right)


def free_nbytes() -> int:
    """Return the number of free bytes of memory, or a very large number if it is unknown."""
    # Only Linux has this file, and a container may hide the file or lack the line; then use the next method.
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        available = next(line for line in lines if line.startswith("MemAvailable:"))
        kibibytes = available.split()[1]
        return 1024 * int(kibibytes)
    # Windows has no sysconf, and macOS does not support these names; then nothing limits the result.
    with suppress(OSError, ValueError, AttributeError):
        pages = os.sysconf("SC_AVPHYS_PAGES")
        return pages * os.sysconf("SC_PAGE_SIZE")
    return sys.maxsize
