"""What can go wrong with bytes and storage.

These classes speak about files and stores only. Mistakes in a call (an index out of range, shapes that do not
broadcast) raise what NumPy raises. Errors of the storage backend pass through unchanged.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import TypeVar

from b2array.printable import printable

__all__ = [
    "B2ArrayError",
    "ChecksumError",
    "ChunkLostError",
    "ChunkMissingError",
    "ConflictError",
    "FormatError",
    "LimitError",
    "PerformanceWarning",
    "ReadOnlyError",
    "SnapshotLostError",
    "UnsupportedError",
]

T = TypeVar("T")

_INNER = ("b2array", "contextlib", "numpy")
"""Packages between the program and the place that warns."""


class B2ArrayError(Exception):
    """Base class of every error that b2array defines. Its message can be printed, whatever a file says."""

    def __str__(self) -> str:
        return printable(super().__str__(), keep_lines=True)


class FormatError(B2ArrayError, ValueError):
    """The bytes are not what the format document says they must be."""


class ChecksumError(FormatError):
    """The bytes differ from the ones that were written."""


class ChunkMissingError(FormatError):
    """The index names a chunk that the store does not have."""


class ChunkLostError(ChunkMissingError):
    """A repair of the frame could not save the chunk."""


class UnsupportedError(B2ArrayError, NotImplementedError):
    """The bytes are valid, but need something that is not available here."""


class ReadOnlyError(B2ArrayError, PermissionError):
    """Writing through a handle that was opened for reading."""


class ConflictError(B2ArrayError):
    """Another writer changed the store in a way that cannot be merged."""


class SnapshotLostError(ConflictError):
    """Other software has overwritten bytes that a snapshot needs."""


class LimitError(B2ArrayError, ValueError):
    """A size exceeds what the format or `b2array.config.limits` allows."""


class PerformanceWarning(UserWarning):
    """The call does what it should, but another way is much faster."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and point at the line that called this package."""
    frame = sys._getframe(1)
    # The first level that `warnings` counts is this function.
    level = 2
    while frame.f_back is not None:
        package, _, _ = frame.f_globals.get("__name__", "").partition(".")
        if package not in _INNER:
            break
        frame = frame.f_back
        level += 1
    warnings.warn(printable(message, keep_lines=True), category, stacklevel=level)


def prefix_errors(where: str, verb: Callable[[], T]) -> T:
    """Call `verb`, and prefix its errors about bad bytes with `where`."""
    try:
        return verb()
    except (FormatError, UnsupportedError) as error:
        raise prefix_error(where, error) from error


def prefix_error(where: str, error: B2ArrayError) -> B2ArrayError:
    """Return a new error like this one, its message prefixed with `where`.

    Examples
    --------
    >>> prefix_error("a.b2nd", prefix_error("a.b2nd", FormatError("expected a frame")))
    FormatError('a.b2nd: expected a frame')
    """
    text = str(error)
    where = printable(where)
    if not text.startswith(where):
        text = f"{where}: {text}"
    return type(error)(text)
