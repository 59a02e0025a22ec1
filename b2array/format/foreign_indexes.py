"""Indexes that python-blosc2 keeps for its queries: two attributes of an array.

Its queries trust an index until the index is marked as stale. When python-blosc2 changes the array, it marks all
indexes and removes its cached results. Every other writer must do the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from b2array.errors import FormatError, UnsupportedError
from b2array.format.attributes import decode_attr, encode_attr
from b2array.format.state import State

__all__ = ["with_stale_indexes"]

_INDEXES, _ANSWERS = "blosc2_indexes", "_blosc2_query_cache"


def with_stale_indexes(state: State) -> State:
    """Mark the indexes of an array whose values or shape have changed, so that python-blosc2 does not use them."""
    names = state.attr_names
    if _ANSWERS in names:
        state = state.with_attr(_ANSWERS, None)
    return _mark(state) if _INDEXES in names else state


def _mark(state: State) -> State:
    try:
        catalog = decode_attr(state.attr(_INDEXES) or b"")
    except (FormatError, UnsupportedError):
        return state  # python-blosc2 cannot read the catalog either, so it uses no index
    entries = catalog.get("indexes") if isinstance(catalog, Mapping) else None
    if not isinstance(entries, Mapping) or all(map(_is_stale, entries.values())):
        return state
    stale = {name: _with_mark(entry) for name, entry in entries.items()}
    try:
        packed = encode_attr({**catalog, "indexes": stale})
    except TypeError:
        packed = None  # python-blosc2 uses no index without a catalog
    return state.with_attr(_INDEXES, packed)


def _is_stale(entry: object) -> bool:
    return not isinstance(entry, Mapping) or entry.get("stale") is True


def _with_mark(entry: Any) -> Any:
    return {**entry, "stale": True} if isinstance(entry, Mapping) else entry
