"""`rm`, `mv`, `attrs`: change members of groups, and arrays outside groups, from the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from b2array.array.described import Attributes
from b2array.array.schunk import SChunk
from b2array.catalog.group_places import group_of
from b2array.catalog.owners import find_frame, load
from b2array.commit.draft import discard_quietly
from b2array.errors import UnsupportedError
from b2array.group import addressing
from b2array.group.group import Group, open_group
from b2array.store.open import open_store
from b2array.store.secrets import redact_url

__all__ = ["assignments", "attributes", "remove", "rename", "set_attributes"]


def remove(url: str, storage_options: Mapping[str, Any], *, recursive: bool) -> str:
    """Remove a member of a group, or a frame outside groups, and return a message.

    UnsupportedError: the URL is a top-level group, or a nested group without `recursive`.
    """
    place = group_of(url, storage_options)
    if place is None:
        store = open_store(url, storage_options=storage_options)
        load(store)  # raises an error for a missing object and for an object that is not a frame
        discard_quietly(store)
        if find_frame(store) is not None:
            raise OSError(f"{store.url} could not be removed")
        return f"removed {store.url}"
    if not place.name:
        raise UnsupportedError(f"{redact_url(url)} is a whole group: rm removes members, and arrays in no group")
    with open_group(place.group, "r+", storage_options=storage_options) as group:
        if isinstance(group[place.name], Group) and not recursive:
            raise UnsupportedError(f"{place.name!r} is a group: --recursive removes it with all that is below it")
        del group[place.name]
    return f"removed {place.name} from {redact_url(place.group)}"


def rename(source: str, target: str, storage_options: Mapping[str, Any]) -> str:
    """Rename a member within its group, in one commit, and return a message. ValueError for any other move."""
    old = _member(source, storage_options)
    new = _member(target, storage_options)
    if old is None or new is None or old.group != new.group:
        raise ValueError(
            f"mv renames members within one group, found {redact_url(source)} and {redact_url(target)}; to move "
            "elsewhere, copy it, then rm it"
        )
    with open_group(old.group, "r+", storage_options=storage_options) as group:
        group.move(old.name, new.name)
    return f"moved {old.name} to {new.name} in {redact_url(old.group)}"


def _member(url: str, storage_options: Mapping[str, Any]) -> Any:
    """Return the group and the name of a member, or None if the URL is a top-level group or outside groups."""
    place = group_of(url, storage_options)
    return place if place is not None and place.name else None


def assignments(texts: Sequence[str]) -> dict[str, Any]:
    """Parse attributes from NAME=VALUE texts; a value that is not JSON is text. ValueError for other texts."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError(f"expected NAME=VALUE, found {text!r}")
        try:
            values[name] = json.loads(value)
        except ValueError:
            # Text needs no quotation marks, because shells would remove them.
            values[name] = value
    return values


def attributes(url: str, storage_options: Mapping[str, Any], at: str | None) -> dict[str, Any]:
    """Return the attributes of an array, a super-chunk or a group."""
    with addressing.open(url, at=at, storage_options=storage_options) as opened:
        return dict(_attrs(opened))


def set_attributes(
    url: str,
    storage_options: Mapping[str, Any],
    values: Mapping[str, Any],
    removed: Sequence[str],
) -> None:
    """Set attributes and remove others, in one commit. KeyError if no snapshot has that name."""
    with addressing.open(url, "r+", storage_options=storage_options) as opened, opened.transaction() as changes:
        attrs = _attrs(changes)
        for name in removed:
            del attrs[name]
        attrs.update(values)


def _attrs(opened: Any) -> Attributes:
    attrs: Attributes = opened.vlmeta if isinstance(opened, SChunk) else opened.attrs
    return attrs
