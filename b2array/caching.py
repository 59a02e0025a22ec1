"""Values that are worked out once an instance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

__all__ = ["cached"]

T = TypeVar("T")


class cached(Generic[T]):  # noqa: N801 - used as a decorator, as property is
    """Like `functools.cached_property`, which in Python 3.11 has a lock that a fork can leave locked for ever.

    Threads that come at the same time may each work out the value, and then have equal ones.

    Examples
    --------
    >>> class Square:
    ...     side = 3
    ...
    ...     @cached
    ...     def area(self):
    ...         return self.side**2
    >>> square = Square()
    >>> square.area, vars(square)
    (9, {'area': 9})
    """

    def __init__(self, verb: Callable[[Any], T]) -> None:
        self._verb = verb
        self.__doc__ = verb.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        # What is in the instance's own dictionary is found before this is asked again.
        value: T = instance.__dict__.setdefault(self._name, self._verb(instance))
        return value
