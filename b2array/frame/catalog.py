"""Reads the manifest of a group, and remembers what this process last saw of it."""

from __future__ import annotations

from typing import Any

from b2array import config
from b2array.errors import LimitError, prefix_errors
from b2array.frame.manifest import MANIFEST, Manifest
from b2array.store.base import MISSING, Store, Version

__all__ = ["Catalog", "read_manifest"]


def read_manifest(
    group: Store, *, versioned: bool = True, known: tuple[Manifest, Version | None] | None = None
) -> tuple[Manifest, Version | None]:
    """Read the manifest of a group, and its version. Where there is no manifest, there is no version either.

    `known` is the result of an earlier call. If the version is still the same, nothing is parsed again.
    """
    limit = config.limits.metadata_nbytes
    (head,) = group.head([MANIFEST], limit)
    version = None
    unversioned = not isinstance(head, Exception) and head.version is None
    if unversioned and versioned and group.can.write:
        # Read the version first: then the content is at least as new, and no update is lost.
        version = group.stamp(MANIFEST).version
        (head,) = group.head([MANIFEST], limit)
    if isinstance(head, MISSING):
        return Manifest(), None
    if isinstance(head, Exception):
        raise head
    if known is not None and head.version is not None and known[1] == head.version:
        return known
    where, data = f"{group.url}/{MANIFEST}", head.data
    if len(data) == limit:
        raise LimitError(f"{where} has {limit} bytes or more")
    return prefix_errors(where, lambda: Manifest.unpack(data)), head.version or version


class Catalog:
    """The manifest of a group in an object store, as this process last saw it.

    The handles of a group's members share one, so that a commit through one of them spares the next one a request.
    `written` is the manifest that the last of these commits has written.
    """

    def __init__(self, group: Store) -> None:
        self.group = group
        self.written: tuple[Manifest, Version | None] | None = None
        self._seen: tuple[Manifest, Version | None] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.group,)

    @property
    def url(self) -> str:
        """Where the group is, without secrets."""
        return self.group.url

    def read(self) -> tuple[Manifest, Version | None]:
        """Return the manifest that is stored now, and its version."""
        self._seen = read_manifest(self.group, known=self._seen)
        return self._seen

    def last_seen(self) -> tuple[Manifest, Version | None]:
        """Return the manifest that was last read or written; read it if there was none."""
        return self._seen or self.read()

    def note(self, seen: tuple[Manifest, Version | None] | None, *, is_written: bool = False) -> None:
        """Remember a manifest and its version; None: the next look must read it."""
        self._seen = seen
        if is_written:
            self.written = seen
