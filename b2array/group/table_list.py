"""Keeps the list of tables in a group's embedding frame, by which python-blosc2 tells tables from groups."""

from __future__ import annotations

from b2array.array.schunk import SChunk
from b2array.catalog.manifest import EMBEDDED
from b2array.commit.columns import describes_a_table, is_description, table_of
from b2array.commit.group_commit import GroupChange
from b2array.group import embedded
from b2array.group.group_forks import Changes
from b2array.store.base import Head

__all__ = ["update_table_list"]


def update_table_list(changes: Changes, change: GroupChange) -> None:
    """Add the tables that a transaction makes to python-blosc2's list, and remove those that it deletes.

    This changes the embedding frame in the transaction. A group without an embedding frame has no such list, and
    neither has a group in an object store, which python-blosc2 does not open.
    """
    if not changes.view.is_local:
        return
    removed = [path for path in change.removed.values() if table_of(path)]
    made = [path for path, member in change.members.items() if member.is_new and table_of(path)]
    if not (removed or made):
        return
    (head,) = changes.view.store.head([EMBEDDED], 1)
    if not isinstance(head, Head):
        return
    schunk = SChunk(changes.open_unnoted(EMBEDDED, "r+"))
    tables = {table_of(path): False for path in removed}
    if not embedded.lists_objects(schunk):
        # Without a list, python-blosc2 finds the tables itself. A list with some of them would hide the others.
        others = [path for path in changes.view.members().values() if table_of(path) and path not in removed]
        tables |= {table_of(path): describes_a_table(changes.view.store_of(path)) for path in others}
    tables |= {table_of(path): is_description(change.members[path].draft.state) for path in made}
    embedded.update_tables(schunk, tables)
