"""What can go wrong with bytes and storage.

These classes speak about files and stores only. The user's own slips (an index out of range, shapes that do not
broadcast) raise what NumPy raises, and errors of the storage backend pass through unchanged.
"""

__all__ = [
    "B2ArrayError",
    "ChecksumError",
    "ChunkMissingError",
    "ConflictError",
    "FormatError",
    "LimitError",
    "ReadOnlyError",
    "UnsupportedError",
]


class B2ArrayError(Exception):
    """Base class of every error that b2array defines."""


class FormatError(B2ArrayError, ValueError):
    """The bytes are not what the format document says they must be."""


class ChecksumError(FormatError):
    """The bytes differ from those that were written."""


class ChunkMissingError(FormatError):
    """The index names a chunk that the store does not have."""


class UnsupportedError(B2ArrayError, NotImplementedError):
    """The bytes are valid, but need something that is not available here."""


class ReadOnlyError(B2ArrayError, PermissionError):
    """Writing through a handle that was opened for reading."""


class ConflictError(B2ArrayError):
    """Another writer changed the store in a way that cannot be merged."""


class LimitError(B2ArrayError, ValueError):
    """A size exceeds what the format or `b2array.config.limits` allows."""
