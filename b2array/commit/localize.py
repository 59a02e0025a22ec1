"""Turns a group whose files were copied from an object store into a local group: `localize`.

On a local disk, the files are the list of members, and the index of a member has the usual name. So this module copies
the index of each listed revision to the usual name if another index was published last, and removes the rows from the
manifest.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from b2array.catalog.manifest import DATA, Manifest, Row, data_path, index_name, is_embedded, is_index_name
from b2array.catalog.owners import load_published
from b2array.commit.manifest_writes import write_manifest
from b2array.errors import FormatError, UnsupportedError
from b2array.frame.source import FRAME_NAME
from b2array.store.base import MISSING, Store, Version

__all__ = ["localize"]


def localize(group: Store, manifest: Manifest, version: Version | None) -> None:
    """Convert the files of a group to the form of a local group, and write the manifest; do nothing if it has no rows.

    The caller holds the lock of the manifest, and has read this `manifest` of this `version`. This deletes the
    revisions after the write.

    Raises
    ------
    UnsupportedError
        The group has snapshots, which name revisions.
    FormatError
        A revision that the manifest lists is missing.
    ConflictError
        Another writer has replaced the manifest.
    """
    if manifest.rows is None:
        return
    if manifest.kept:
        raise UnsupportedError(
            f"{group.url} was copied from an object store with snapshots, and can only be read here: b2array.convert"
            " makes a local copy with them"
        )
    rows = [row for row in manifest.rows.values() if row.generation and not is_embedded(row.path)]
    # If this process is killed before it writes the manifest, the rows remain, and the next writer starts again.
    for row in rows:
        _copy_to_usual_name(group, row)
    write_manifest(group, replace(manifest, rows=None, gone={}), version)
    listed = {row.path for row in rows}
    group.delete([path for path in group.walk() if _is_revision(path, listed)])


def _copy_to_usual_name(group: Store, row: Row) -> None:
    """Copy the listed index of a member to its usual name, unless it is there already, and force it to the disk.

    FormatError: the listed index is missing.
    """
    store = group.below(row.path)
    try:
        if load_published(store).generation == row.generation:
            return
    except (*MISSING, FormatError):
        # The writer was killed before it published the member, or the copy there is damaged.
        pass
    path = f"{row.path}/{index_name(row.generation)}" if row.sparse else data_path(row.generation)
    try:
        content = b"".join(group.below(path).pieces())
    except MISSING:
        raise FormatError(f"{group.url}: expected {path}, which the manifest lists, found nothing") from None
    store.replace(FRAME_NAME if row.sparse else "", content)
    store.force()


def _is_revision(path: str, members: Collection[str]) -> bool:
    """Whether the file at a path of the group holds a revision; `members` has the paths of the members."""
    prefix, _, name = path.rpartition("/")
    return prefix == DATA or (is_index_name(name) and prefix in members)
