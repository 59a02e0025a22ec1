"""Finds a frame or a group at a URL, and calls a function for each member of the group."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from b2array.catalog.manifest import ATTRS, EMBEDDED, is_attrs, is_embedded, name_of
from b2array.errors import B2ArrayError, FormatError, ReadOnlyError, UnsupportedError
from b2array.exchange.formats import B2ND, Format, Storage
from b2array.exchange.groups import B2Z, members_of
from b2array.exchange.places import find
from b2array.group.addressing import split_member
from b2array.group.archive import Archive
from b2array.group.homes import GroupHome
from b2array.store.secrets import redact_url
from b2array.tools.results import Failure, Result, Results

__all__ = ["Listing", "change_each", "collect", "each_frame"]

R = TypeVar("R", bound=Result)


class Listing(NamedTuple):
    """Members of a group: the home of the group, and the paths of members by name.

    `error` explains why members may be missing; `part` is the name of the requested group within the home.
    """

    home: GroupHome | Archive
    paths: Mapping[str, str]
    error: B2ArrayError | None = None
    part: str = ""


def change_each(
    url: str | os.PathLike[str],
    storage_options: Storage,
    change: Callable[[str], R],
    *,
    dry_run: bool,
    outside: Callable[[GroupHome], Result | None] | None = None,
) -> R | Results:
    """Change a frame, or every member of a group that has its own files. An error in one member does not stop the rest.

    `outside` processes the files of a top-level group that belong to no member. Its result, if any, is named ".".
    """

    def refuse(kind: Format, _: str = "") -> R:
        address = redact_url(os.fsdecode(url))
        raise UnsupportedError(
            f"{address} is of the format {kind.name}, which is not changed in place: b2array convert {address} copy.b2d"
            " copies it to a group"
        )

    def each(members: Listing) -> R | Results:
        home, paths, error, part = members
        if isinstance(home, Archive):
            return refuse(B2Z)
        if not home.store.can.write and not dry_run:
            raise ReadOnlyError(f"{home.url} can only be read")
        if any(map(is_embedded, paths.values())):
            # Embedded members have no files: the frame that contains them is changed as a whole.
            paths = {name: path for name, path in paths.items() if not is_embedded(path)}
            paths[EMBEDDED] = EMBEDDED
        if list(paths) == [""]:
            return change(home.address(paths[""]))
        if error is None and not dry_run:
            home.recover()
        if error is None and outside is not None and not part:
            paths = {".": "", **paths}

        def result(path: str) -> Result | None:
            if not path and outside is not None:
                return outside(home)
            return change(home.address(path))

        return collect(home.url, home.url, paths, result, error, group=home)

    return each_frame(url, storage_options, change, each, refuse)


def each_frame(
    url: str | os.PathLike[str],
    storage_options: Storage,
    frame: Callable[[str], R],
    group: Callable[[Listing], R | Results],
    other: Callable[[Format, str], R | Results],
) -> R | Results:
    """Call the function that handles the object at a URL: a frame, a group, or a file of another format."""
    text = os.fsdecode(url)
    if text.endswith(B2ND.suffixes) and os.path.lexists(text):
        return frame(text)  # no other members are read if the frame is a member
    try:
        kind, address = find(text, None, storage_options, exists=True)
    except FileNotFoundError:
        kind, address = B2ND, text  # a writer that was killed may have left files next to it
    if kind.name in ("b2nd", "b2e"):
        return frame(address)
    if kind.name not in ("b2d", "b2z"):
        return other(kind, address)
    outer, part = split_member(address)
    try:
        listed = Listing(*members_of(address, storage_options), part)
    except FileNotFoundError as missing:
        try:
            return frame(text)  # a directory without its index is not recognized as a frame
        except FileNotFoundError as absent:
            # If the group exists, its error is more specific: it names the missing member.
            group_exists = "://" in outer or os.path.lexists(outer)
            raise (missing if group_exists else absent) from None
    return group(listed)


def collect(
    url: str,
    home: str,
    paths: Mapping[str, str],
    result: Callable[[str], Result | None],
    error: Exception | None = None,
    *,
    group: GroupHome | None = None,
) -> Results:
    """Return the results for members by name. A member that fails does not stop the others.

    With a `group`, a member that another writer has deleted meanwhile has no result. A member that another writer has
    replaced meanwhile is checked again, at its present path.
    """
    results: dict[str, Result] = {}
    if error is not None:
        results["."] = Failure(home, str(error), isinstance(error, FormatError))
    for member, path in paths.items():
        name = f"{member.removesuffix(ATTRS).rstrip('/')}/" if is_attrs(member) else member
        one = _result_of(home, path, result)
        if one is not None and not one.ok and error is None and group is not None:
            now = _path_now(group, path)
            if now is None:
                continue
            is_absent = isinstance(one, Failure) and not one.damaged
            if now != path or is_absent:
                one = _result_of(home, now, result)
        if one is not None:
            results[name] = one
    return Results(url, results)


def _result_of(home: str, path: str, result: Callable[[str], Result | None]) -> Result | None:
    """Return the result for one member, or its failure."""
    try:
        return result(path)
    except Exception as failed:  # noqa: BLE001 - other libraries raise errors of many kinds
        text = str(failed) or type(failed).__name__
        return Failure(f"{home}/{path}", text, isinstance(failed, FormatError))


def _path_now(group: GroupHome, path: str) -> str | None:
    """Read the group again, and return the path of the member that was at a path; None if it was deleted.

    A path that was not a member's stays the same.
    """
    before = group.members()
    name = name_of(path)
    if before.get(name) != path:
        return path
    group.refresh()
    return group.members().get(name)
