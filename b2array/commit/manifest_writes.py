"""Writes the manifest of a group."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from b2array.catalog.known_manifests import KnownManifest, read_manifest, remember_manifest
from b2array.catalog.manifest import MANIFEST, Manifest
from b2array.commit.outcomes import Found, Look, write_once
from b2array.store.base import Store, Version, conflict

__all__ = ["replace_manifest", "write_manifest"]


def write_manifest(
    group: Store,
    manifest: Manifest,
    version: Version | None,
    *,
    is_commit: bool = False,
    keep: Callable[[], object] = lambda: None,
) -> Look[Manifest]:
    """Replace the manifest of that version, or raise ConflictError; return what is there now.

    The caller holds the lock of the manifest. Without a version, this makes the first manifest. It forces the manifest
    to the disk, and this process remembers it. `is_commit` says that the manifest has the token of a new commit, by
    which it is recognized below later commits. `keep` is for `write_once`, whose errors this raises.
    """
    content = manifest.pack()

    def look() -> Look[Manifest]:
        """Compare the stored manifest with the manifest that was written, and with the version that it replaces."""
        stored, now = read_manifest(group, hidden_is_missing=False)
        if stored == manifest or (is_commit and stored.follows(manifest)):
            return Look(Found.OURS, now, stored)
        return Look(Found.AS_BEFORE if now == version else Found.OTHER, now, stored)

    if version is None:
        write = partial(group.create, MANIFEST, content)
    else:
        write = partial(group.replace, MANIFEST, content, expected=version)
    try:
        written = write_once(group, write, look, forces=True, keep=keep)
    except FileExistsError as error:
        raise conflict(group.url) from error
    remember_manifest(content, manifest)
    return written


def replace_manifest(
    known: KnownManifest,
    manifest: Manifest,
    version: Version | None,
    *,
    is_commit: bool = False,
    keep: Callable[[], object] = lambda: None,
) -> Manifest:
    """Replace the manifest of that version, or raise ConflictError; remember the new one in `known`, and return it.

    If other commits have followed at once, the manifest with these commits is returned. After an error, `known` reads
    the manifest at its next use. The parameters are as for `write_manifest`. The caller holds the lock of the manifest,
    if there is one.
    """
    known.remember(None)
    written = write_manifest(known.group, manifest, version, is_commit=is_commit, keep=keep)
    newest = written.content or manifest
    known.remember((newest, written.version), is_written=True)
    return newest
