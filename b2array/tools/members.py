"""`verify`, `repair`, `vacuum` and `repack` for all members of a group, one after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from b2array.array.array import NDArray
from b2array.array.copying import PIECE_NBYTES
from b2array.array.schunk import SChunk
from b2array.engine.snapshot import Snapshot, load
from b2array.errors import B2ArrayError, FormatError, UnsupportedError
from b2array.exchange.formats import Format, Storage
from b2array.exchange.groups import members_of
from b2array.exchange.places import find
from b2array.grid.partition import boxes
from b2array.group.addressing import split_member
from b2array.group.archive import Archive
from b2array.group.directory import Directory
from b2array.group.group import Group
from b2array.group.manifest import ATTRS, EMBEDDED, is_embedded
from b2array.progress import track
from b2array.store.secrets import redact
from b2array.tools import repair as repairing
from b2array.tools import vacuum as vacuuming
from b2array.tools.results import Failure, Result, Results
from b2array.tools.vacuum import Cleanup, vacuum_group
from b2array.tools.verify import Problem, Report, verified, verify_frame

__all__ = ["change_each", "repack", "repair", "vacuum", "verify"]

P = ParamSpec("P")
R = TypeVar("R", bound=Result)
Url = str | os.PathLike[str]
Inner = Callable[[str, Callable[[], Snapshot]], R]
"""A function for a frame inside another file. It takes the place of the frame, and what opens it."""


def change_each(
    url: str, storage_options: Storage, change: Callable[[str], R], *, dry_run: bool, grace: str | float | None = None
) -> R | Results:
    """Change a frame, or every member of a group with files of its own. Errors do not stop the other members.

    With `grace`, remove files that belong to no member, too; see `vacuum`.
    """
    kind, address = find(url, None, storage_options, exists=True)
    if kind.name == "b2nd":
        return change(address)
    if kind.name != "b2d":
        shown = redact(url)
        raise UnsupportedError(
            f"{shown} is of the format {kind.name}, which is not changed in place: b2array convert {shown} copy.b2d"
            " copies it to a group"
        )
    done = _each(address, storage_options, change, None, recover=not dry_run)
    if grace is None or not isinstance(done, Results) or split_member(address)[1] or "." in done.members:
        return done
    home = Directory(address, storage_options or {})
    found = _collected(done.url, done.url, {".": ""}, lambda _: vacuum_group(home, grace=grace, dry_run=dry_run))
    (left,) = found.members.values()
    return done if left == Cleanup(home.store.url, dry_run) else Results(done.url, {".": left, **done.members})


def _for_groups(change: Callable[Concatenate[Url, P], R]) -> Callable[Concatenate[Url, P], R | Results]:
    """Let a function that changes a frame take a group, too, and go through its members."""

    @wraps(change)
    def each(url: Url, *args: P.args, **options: P.kwargs) -> R | Results:
        try:
            return change(url, *args, **options)
        except FileNotFoundError as missing:
            storage: Any = options.get("storage_options")
            grace: Any = options.get("grace", "24h") if change is vacuuming.vacuum else None
            try:
                return change_each(
                    os.fspath(url), storage, lambda address: change(address, *args, **options),
                    dry_run=bool(options.get("dry_run")), grace=grace,
                )  # fmt: skip
            except FileNotFoundError:
                raise missing from None

    return cast("Callable[Concatenate[Url, P], R | Results]", each)  # it also takes url by its name


repair, repack, vacuum = _for_groups(repairing.repair), _for_groups(vacuuming.repack), _for_groups(vacuuming.vacuum)


def verify(
    source: Url | NDArray | SChunk | Group, *, deep: bool = False, storage_options: Storage = None,
    progress: bool = False,
) -> Report | Results:  # fmt: skip
    """Check whether an array is in order, or all arrays of a group, without changing anything.

    Header, index and trailer are compared with their fingerprint. Each chunk's head and its checksum record are
    checked. Where the store can be listed, missing and orphaned files are found too. It checks what is stored now, even
    if a handle shows an earlier state.

    Parameters
    ----------
    source : str, os.PathLike, NDArray, SChunk or Group
        An array, any other frame, or a group: where it is, or a handle. Files of other formats are read as a whole.
    deep : bool, default False
        Whether to read all of each chunk, compare it with its checksums, and decode it.
    storage_options : mapping, optional
        For fsspec.
    progress : bool, default False
        Whether to show a progress bar.

    Returns
    -------
    Report or Results
        For a group, the results for its members. A damaged member does not stop the others.

    Raises
    ------
    FileNotFoundError
        There is nothing: no frame, no chunk and no group.
    ConflictError
        Other writers kept changing the frame meanwhile.

    Examples
    --------
    >>> import b2array
    >>> a = b2array.zeros((4, 6), chunks=(2, 6), url="memory://verified/")
    >>> a[0] = 1
    >>> report = b2array.verify(a, deep=True)
    >>> report.ok, report.checked, report.special
    (True, 1, 1)
    >>> group = b2array.open_group("memory://group", mode="w")
    >>> group["level"] = [1, 2, 3]
    >>> print(b2array.verify(group))
    memory://group: 1 member
      member  result    layout  chunks  checksums
      level   in order  sparse  1       1 of 1 stored chunk
    """

    def whole(address: str) -> Report:
        return verify_frame(address, deep=deep, storage_options=storage_options, progress=progress)

    def inner(where: str, load: Callable[[], Snapshot]) -> Report:
        return verified(where, load, deep=deep, progress=progress)

    if isinstance(source, NDArray | SChunk):
        held = source._handle.snapshot
        return inner(held.url, lambda: load(held.store, start=held.start))
    if isinstance(source, Group):
        home = source._home
        return _collected(
            source.url, home.url, source._below(),
            lambda path: inner(f"{home.url}/{path}", lambda: home.open(path, "r").snapshot),
        )  # fmt: skip
    kind, address = find(source, None, storage_options, exists=True)
    if kind.name == "b2nd":
        return whole(address)
    if kind.name in ("b2d", "b2z"):
        return _each(address, storage_options, whole, inner, recover=False)
    return _read(kind, address, storage_options, progress=progress)


def _each(
    address: str, storage_options: Storage, whole: Callable[[str], R], inner: Inner[R] | None, *, recover: bool
) -> R | Results:
    try:
        home, paths, error = members_of(address, storage_options)
    except FileNotFoundError as missing:
        try:
            return whole(address)  # a directory whose index is missing does not show that it is a frame
        except FileNotFoundError:
            raise missing from None

    def result(path: str) -> R:
        if isinstance(home, Archive) or (is_embedded(path) and inner is not None):
            if inner is None:
                raise UnsupportedError(f"{home.url} is an archive, which can only be read")
            return inner(f"{home.url}/{path}", lambda: home.open(path, "r").snapshot)
        return whole(home.address(path))

    if inner is None and any(map(is_embedded, paths.values())):
        paths = {name: path for name, path in paths.items() if not is_embedded(path)} | {EMBEDDED: EMBEDDED}
    if list(paths) == [""]:
        return result(paths[""])
    if recover and error is None and not isinstance(home, Archive):
        home.recover()
    return _collected(home.url, home.url, paths, result, error)


def _collected(
    url: str, home: str, paths: Mapping[str, str], result: Callable[[str], Result], error: B2ArrayError | None = None
) -> Results:
    """Return the results for members. One that fails does not stop the others."""
    found: dict[str, Result] = {}
    if error is not None:
        found["."] = Failure(home, str(error), isinstance(error, FormatError))
    for member, path in paths.items():
        name = f"{member.removesuffix(ATTRS).rstrip('/')}/" if member.rpartition("/")[2] == ATTRS else member
        try:
            found[name] = result(path)
        except (B2ArrayError, OSError) as failed:
            found[name] = Failure(f"{home}/{path}", str(failed), isinstance(failed, FormatError))
    return Results(url, found)


def _read(kind: Format, address: str, storage_options: Storage, *, progress: bool) -> Report | Results:
    """Read all arrays of a file of another format, so that its library finds damage."""
    found: dict[str, Report] = {}
    url = redact(address)
    with kind.tree(address, storage_options) as tree:
        for name in tree.names:
            where = f"{url}/{name}".rstrip("/")
            report = Report(where, deep=True, layout=kind.name)
            try:
                source = tree.open(name)
                with track(source.nbytes, "verifying", progress) as shown:
                    for box in boxes(source.shape, PIECE_NBYTES // max(1, source.dtype.itemsize), source.chunks):
                        shown.advance(source.read(box).nbytes)
                found[name] = report
            except (FormatError, UnsupportedError) as error:
                problem = "chunk" if isinstance(error, FormatError) else "unsupported"
                found[name] = Report(where, deep=True, problems=(Problem(problem, None, "", str(error)),))
    return found[""] if list(found) == [""] else Results(url, found)
