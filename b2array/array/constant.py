"""Dictionaries, lists and sets that cannot be changed: what is inside an attribute, which only an assignment stores."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NoReturn

import numpy as np

__all__ = ["constant"]


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    """Refuse a change, which would be lost."""
    kind = next(kind.__name__ for kind in (dict, list, set) if isinstance(self, kind))
    raise TypeError(f"a change of this {kind} would be lost: assign a changed copy.deepcopy() to the attribute")


class _Dict(dict[Any, Any]):
    """A dictionary that cannot be changed; its copies can."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        # copy.copy, copy.deepcopy and pickle make a plain dictionary.
        return dict, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return {key: deepcopy(value, memo) for key, value in self.items()}


class _List(list[Any]):
    """A list that cannot be changed; its copies can."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [deepcopy(value, memo) for value in self]


class _Set(set[Any]):
    """A set that cannot be changed; its copies can."""

    __slots__ = ()
    __iand__ = __ior__ = __isub__ = __ixor__ = _refuse
    add = clear = discard = pop = remove = _refuse
    update = difference_update = intersection_update = symmetric_difference_update = _refuse

    def __repr__(self) -> str:
        return repr(set(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return set, (list(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> set[Any]:
        return set(self)


def constant(value: Any) -> Any:
    """Return a value of msgpack with all dictionaries, lists, sets and arrays in it unchangeable.

    Examples
    --------
    >>> gains = constant({"gains": [1.0, 2.0]})
    >>> gains["gains"][0] = 3.0
    Traceback (most recent call last):
    TypeError: a change of this list would be lost: assign a changed copy.deepcopy() to the attribute
    >>> gains == {"gains": [1.0, 2.0]}
    True
    """
    if isinstance(value, dict):
        return _Dict({key: constant(each) for key, each in value.items()})
    if isinstance(value, list):
        return _List(map(constant, value))
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(map(constant, value))
    if isinstance(value, set):
        return _Set(value)
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    return value
