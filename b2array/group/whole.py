"""What is done to a group as a whole: find it, make it, complete it, describe all of its members, remove it."""

from __future__ import annotations

from contextlib import suppress

from b2array.array.opening import create_schunk
from b2array.errors import ReadOnlyError
from b2array.group.directory import Directory, record_of
from b2array.group.manifest import EMBEDDED, MANIFEST, Manifest, is_embedded, members_among
from b2array.group.redo import ABSENT
from b2array.group.transaction import Transaction
from b2array.store.atomic import require_free
from b2array.store.base import says_more

__all__ = ["check_replaceable", "clear", "complete", "consolidate", "exists", "initialise"]


def exists(group: Directory) -> bool:
    """Whether there is a group: a manifest, an embedding frame, a local directory, or a prefix with members."""
    heads = group.store.head([MANIFEST, EMBEDDED], 8)
    if any(not isinstance(head, Exception) for head in heads):
        return True
    for error in heads:
        if isinstance(error, Exception) and (says_more(error) or not isinstance(error, ABSENT)):
            raise error
    try:
        files = group.store.walk()
    except (*ABSENT, PermissionError):  # without the right to list, only a manifest can tell
        return False
    return group.is_local or bool(members_among(files))


def initialise(group: Directory) -> None:
    """Make an empty group: an embedding frame, and a manifest where one is needed."""
    if group.store.guarantee == "read only":
        raise ReadOnlyError(f"{group.url} can only be read")
    _embed_nothing(group)
    if not group.is_local:
        group.write(Manifest({}), None)


def complete(group: Directory) -> None:
    """Add the embedding frame without which python-blosc2 does not open a directory."""
    if group.is_local and isinstance(group.store.head([EMBEDDED], 1)[0], FileNotFoundError):
        with suppress(FileExistsError):
            _embed_nothing(group)


def _embed_nothing(group: Directory) -> None:
    empty = create_schunk(chunksize=2**13, meta={"b2tree": {"version": 1}})
    empty.vlmeta["estore_metadata"] = {"embed_map": {}, "current_offset": 0}
    group.store.create(EMBEDDED, empty.to_bytes())


def consolidate(group: Directory | Transaction) -> None:
    """Put the summaries of all members into the manifest, as they are now."""
    if isinstance(group, Transaction):
        raise ValueError("consolidate() inside a transaction would describe what is not committed yet")  # noqa: TRY004
    group.recover()
    group.refresh()
    members = group.members()
    records = {path: record_of(group.current(path)) for path in {*members.values()} if not is_embedded(path)}
    group.update(lambda found: found.with_summaries(records, members=members))
    group.refresh()


def check_replaceable(group: Directory) -> None:
    """Raise FileExistsError if there is something that is not known to be a group."""
    kinds = {MANIFEST: b"", EMBEDDED: b""}
    require_free(group.store, kinds, "a group", overwrite=True, name=MANIFEST, alone=True)


def clear(group: Directory) -> None:
    """Remove a group with all its members."""
    check_replaceable(group)
    group.remove(group.members())
    group.store.delete([MANIFEST, EMBEDDED])
    group.refresh()
