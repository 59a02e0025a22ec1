"""Errors about bytes and storage.

These classes concern only files and stores. Mistakes in a call (an index out of range, shapes that do not broadcast)
raise the same errors as NumPy. Errors of the storage backend pass through unchanged.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import NoReturn, TypeVar

from b2array import neighbours
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
"""Packages to skip between the user's program and the code that warns."""


class B2ArrayError(Exception):
    """Base class of every error that b2array defines. Its message is safe to print, whatever text a file contains."""

    def __str__(self) -> str:
        return printable(super().__str__(), keep_lines=True)


class FormatError(B2ArrayError, ValueError):
    """The bytes violate the format."""


class ChecksumError(FormatError):
    """The bytes differ from the written bytes."""


class ChunkMissingError(FormatError):
    """The index refers to a chunk that is not in the store."""


class ChunkLostError(ChunkMissingError):
    """A repair of the frame could not recover the chunk."""


class UnsupportedError(B2ArrayError, NotImplementedError):
    """The bytes are valid, but need a feature or package that is not available."""


class ReadOnlyError(B2ArrayError, PermissionError):
    """An attempt to write through a handle that was opened for reading."""


class ConflictError(B2ArrayError):
    """Another writer changed the store in a way that cannot be merged."""


class SnapshotLostError(ConflictError):
    """Other software has overwritten bytes that a snapshot needs."""


class LimitError(B2ArrayError, ValueError):
    """A size exceeds a limit of the format or of `b2array.config.limits`."""


class PerformanceWarning(UserWarning):
    """The result of the call is correct, but another way is much faster."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points to the line that called this package."""
    frame = sys._getframe(1)
    # `warnings` counts this function as the first level.
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
    """Return a copy of an error, with its message prefixed with `where`.

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


def make_ended_error(url: str | None = None) -> ConflictError:
    """Return the error for work in a transaction that is over; `url` names its array or group."""
    return _conflict(url, "the transaction has ended; begin another one")


def make_forked_error(url: str | None = None) -> ConflictError:
    """Return the error for work in a transaction that the parent of this process began."""
    return _conflict(url, "the transaction belongs to the process from which this one was forked")


def _conflict(url: str | None, text: str) -> ConflictError:
    return ConflictError(f"{url}: {text}" if url else text)


def __getattr__(name: str) -> NoReturn:
    hint = neighbours.hint(name, neighbours.ERRORS)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name)
