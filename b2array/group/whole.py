"""What is done to a group as a whole: find it, make it, complete it, describe all of its members, remove it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from b2array.errors import ReadOnlyError
from b2array.group import embedded
from b2array.group.directory import Directory, record_of
from b2array.group.manifest import EMBEDDED, MANIFEST, Manifest, is_embedded, members_among
from b2array.group.redo import ABSENT
from b2array.group.transaction import Transaction
from b2array.store.atomic import require_free

__all__ = ["check_replaceable", "clear", "complete", "consolidate", "exists", "has_members", "initialise"]


_GLANCE = 2000
"""Number of entries to look at before a directory without a manifest is said to be no group."""


def exists(group: Directory) -> bool:
    """Whether there is a group, or a local directory that can become one."""
    if _is_marked(group):
        return True
    try:
        files = group.store.listing() if group.is_local else group.store.walk()
    except (*ABSENT, PermissionError):  # without the right to list, only a manifest can tell
        return False
    return group.is_local or bool(members_among(files))


def has_members(group: Directory) -> bool:
    """Whether a local directory shows that it is a group; of large ones only the first entries are looked at."""
    if not group.is_local or _is_marked(group):
        return True
    return bool(members_among(islice(_entries(group.store.url), _GLANCE)))


def _is_marked(group: Directory) -> bool:
    heads = group.store.head([MANIFEST, EMBEDDED], 8)
    if any(not isinstance(head, Exception) for head in heads):
        return True
    for error in heads:
        if isinstance(error, Exception) and not isinstance(error, ABSENT):
            raise error
    return False


def _entries(directory: str) -> Iterator[str]:
    """Yield what is in and below a directory by names with slashes, the nearest first."""
    waiting = deque([""])
    while waiting:
        below = waiting.popleft()
        try:
            with os.scandir(f"{directory}/{below}") as entries:
                found = [(f"{below}{entry.name}", entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError:
            continue
        waiting += [f"{name}/" for name, is_directory in found if is_directory]
        yield from (name for name, _ in found)


def initialise(group: Directory) -> None:
    """Make an empty group: an embedding frame, and a manifest where one is needed."""
    if group.store.guarantee == "read only":
        raise ReadOnlyError(f"{group.url} can only be read")
    group.store.create(EMBEDDED, embedded.nothing())
    if not group.is_local:
        group.write(Manifest({}), None)


def complete(group: Directory) -> None:
    """Add the embedding frame without which python-blosc2 does not open a directory."""
    if group.is_local and isinstance(group.store.head([EMBEDDED], 1)[0], FileNotFoundError):
        with suppress(FileExistsError):
            group.store.create(EMBEDDED, embedded.nothing())


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
