"""Writes the manifest of a group."""

from __future__ import annotations

from b2array.errors import ConflictError
from b2array.frame.catalog import Catalog, read_manifest, remember_manifest
from b2array.frame.manifest import MANIFEST, Manifest
from b2array.store.base import Store, Version, conflict

__all__ = ["replace_manifest", "write_manifest"]


def write_manifest(group: Store, manifest: Manifest, version: Version | None) -> Version | None:
    """Replace the manifest of that version, or raise ConflictError; return the new version. The caller holds its lock.

    Without a version, this makes the first manifest. It forces the manifest to the disk. The answer to a successful
    request may be lost; the client then repeats the request, which fails. So after a failure, this reads the manifest,
    and succeeds if it is the one that was written.
    """
    content = manifest.pack()
    try:
        if version is None:
            written = group.create(MANIFEST, content).version
        else:
            written = group.replace(MANIFEST, content, expected=version).version
    except (ConflictError, FileExistsError) as error:
        stored, written = read_manifest(group)
        if stored != manifest:
            raise conflict(group.url) from error
    remember_manifest(content, manifest)
    group.force()
    return written


def replace_manifest(catalog: Catalog, manifest: Manifest, version: Version | None) -> None:
    """Replace the manifest of that version, or raise ConflictError; note the new one in the catalog.

    The caller holds the lock of the manifest, if there is one.
    """
    catalog.note(None)
    written = write_manifest(catalog.group, manifest, version)
    catalog.note((manifest, written), is_written=True)
