"""Saying where an error was found, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from b2array.errors import B2ArrayError, FormatError, UnsupportedError

__all__ = ["located", "located_error"]

T = TypeVar("T")


def located(where: str, verb: Callable[[], T]) -> T:
    """Call `verb` and put `where` in front of what it says about bad bytes."""
    try:
        return verb()
    except (FormatError, UnsupportedError) as error:
        raise located_error(where, error) from error


def located_error(where: str, error: B2ArrayError) -> B2ArrayError:
    """Return the error with `where` in front of what it says.

    Examples
    --------
    >>> located_error("a.b2nd", located_error("a.b2nd", FormatError("expected a frame")))
    FormatError('a.b2nd: expected a frame')
    """
    text = str(error)
    return error if text.startswith(where) else type(error)(f"{where}: {text}")
