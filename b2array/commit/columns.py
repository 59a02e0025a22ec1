"""Tables of python-blosc2 (`blosc2.CTable`): groups whose arrays are columns, which only python-blosc2 may change.

Besides its columns, a table has indexes and counters. A writer of a single column would not update them, and queries
of python-blosc2 would then miss rows.

Source: ``ctable_storage.py`` of python-blosc2.
"""

from __future__ import annotations

import re
from contextlib import suppress

from b2array.catalog.owners import load
from b2array.errors import B2ArrayError, ReadOnlyError
from b2array.format.attributes import decode_attr
from b2array.format.state import State
from b2array.store.base import MISSING, Store
from b2array.store.local_store import LocalStore

__all__ = ["describes_a_table", "is_description", "refuse_columns", "table_of"]

_COLUMN = re.compile(r"(?P<table>.*)[/\\](?P<path>(?:_cols|_indexes)[/\\].+|_valid_rows(?:\.b2nd)?)", re.DOTALL)
_DESCRIPTION = ("_meta.b2f", "_meta.b2nd", "_meta.b2frame")


def refuse_columns(store: Store) -> None:
    """Raise ReadOnlyError if the array in a store is a column of a table, or another part of a table.

    If its path may be in a table, this reads the description of the table.
    """
    # The columns of a table have fixed paths, so other arrays need no look at the store.
    parts = _COLUMN.fullmatch(store.url)
    if parts is None:
        return
    descriptions = _places_of_description(store, parts["table"], parts["path"])
    if any(map(describes_a_table, descriptions)):
        raise ReadOnlyError(
            f"{store.url} belongs to a table of python-blosc2, whose indexes and counts of rows would no longer be "
            f"right; change it with blosc2.open({parts['table']!r}, mode='a'), or write a copy of the array"
        )


def table_of(path: str) -> str:
    """Return the name of the table inside a group that the frame with this path may describe; "" for other paths."""
    outer, _, name = path.rpartition("/")
    return outer if name in _DESCRIPTION else ""


def _places_of_description(store: Store, table: str, path: str) -> list[Store]:
    """Return the places where a table may describe itself, given the `path` of a part of it in the table; read nothing.

    `store` is the place of that part.
    """
    if isinstance(store, LocalStore):
        return [LocalStore(f"{table}/{name}") for name in _DESCRIPTION]
    around = store.around(path)
    return [] if around is None else [around(name) for name in _DESCRIPTION]


def describes_a_table(store: Store) -> bool:
    """Read a frame: whether it is the description of a table. A missing or unreadable frame is not."""
    # If the description is missing or unreadable, python-blosc2 does not open the group as a table either.
    with suppress(*MISSING, B2ArrayError):
        return is_description(load(store).state)
    return False


def is_description(state: State) -> bool:
    """Whether a frame is the description of a table; FormatError if its attribute `kind` is damaged."""
    kind = state.attr("kind")
    return kind is not None and decode_attr(kind) in ("ctable", b"ctable")
