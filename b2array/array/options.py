"""`ArrayOptions`: the options of a new array, checked when a public function gets its keywords."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, SupportsIndex

from b2array.codec.cparams import AnyCParams, given_or_default

__all__ = [
    "OPTIONS",
    "UNSET",
    "ArrayOptions",
    "Casting",
    "Extents",
    "Kind",
    "Shape",
    "Url",
    "array_options",
    "check_keywords",
]

Casting = Literal["no", "equiv", "safe", "same_kind", "unsafe"]
Kind = Literal["auto", "contiguous", "sparse"]
Shape = SupportsIndex | Sequence[SupportsIndex]
Extents = SupportsIndex | str | Sequence[Any] | Mapping[int, Any] | None
"""Extents of chunks or blocks, in the forms that `b2array.grid.chunking.automatic` takes."""

Url = str | os.PathLike[str]

UNSET: Final = object()
"""The fill value of options that name none: None itself is a value, not a number in arrays of floats."""


@dataclass(frozen=True, slots=True)
class ArrayOptions:
    """The options of `b2array.create`, without place, shape and type.

    For an option that is not given, a copy takes the value of its source. Other new arrays take the defaults of
    `create`.
    """

    chunks: Extents = None
    blocks: Extents = None
    fill_value: Any = UNSET
    cparams: AnyCParams = None
    layout: Kind = "auto"
    dims: Sequence[str | None] | None = None
    attrs: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] | None = None
    overwrite: bool = False
    interop: bool = True
    storage_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.cparams is not None:
            object.__setattr__(self, "cparams", given_or_default(self.cparams))


OPTIONS: Final = frozenset(field.name for field in fields(ArrayOptions))


def array_options(function: str, options: Mapping[str, Any]) -> ArrayOptions:
    """Return the options that were given to a public function as keywords.

    Examples
    --------
    >>> array_options("zeros", {"path": "a.b2nd"})
    Traceback (most recent call last):
    TypeError: zeros() got an unexpected keyword argument 'path'
    """
    check_keywords(function, options, OPTIONS)
    return ArrayOptions(**options)


def check_keywords(function: str, given: Iterable[str], known: frozenset[str]) -> None:
    """Raise the TypeError of Python for a keyword that the function does not have."""
    for name in given:
        if name not in known:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
