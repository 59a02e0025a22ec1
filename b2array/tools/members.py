"""What `verify`, `repair`, `vacuum` and `repack` do to all members of a group, one after the other."""

from __future__ import annotations

from collections.abc import Callable

from b2array.array.streaming import boxes
from b2array.engine.snapshot import Snapshot
from b2array.errors import B2ArrayError, FormatError, UnsupportedError
from b2array.exchange.formats import Format, Storage
from b2array.exchange.groups import members_of
from b2array.exchange.places import find
from b2array.group.archive import Archive
from b2array.group.manifest import ATTRS, EMBEDDED, is_embedded
from b2array.progress import track
from b2array.store.secrets import redact
from b2array.tools.results import Failure, Result, Results
from b2array.tools.verify import Problem, Report, verified, verify

__all__ = ["change_each", "verify_each"]

Inner = Callable[[str, Callable[[], Snapshot]], Result]
"""What is done to a frame inside another file; takes where it is, and what opens it."""


def change_each(
    url: str, storage_options: Storage, change: Callable[[str], Result], *, dry_run: bool
) -> Result | Results:
    """Change a frame, or every member of a group that has files of its own; a member that fails stops no other."""
    kind, address = find(url, None, storage_options, exists=True)
    if kind.name == "b2nd":
        return change(address)
    if kind.name != "b2d":
        shown = redact(url)
        raise UnsupportedError(
            f"{shown} is of the format {kind.name}, which is not changed in place: b2array convert {shown} copy.b2d"
            " copies it to a group"
        )
    return _each(address, storage_options, change, None, recover=not dry_run)


def verify_each(url: str, storage_options: Storage, *, deep: bool, progress: bool) -> Result | Results:
    """Verify a frame, or all members of a group; files of other formats are read as a whole."""
    kind, address = find(url, None, storage_options, exists=True)

    def whole(address: str) -> Result:
        return verify(address, deep=deep, storage_options=storage_options, progress=progress)

    def inner(where: str, load: Callable[[], Snapshot]) -> Result:
        return verified(where, load, deep=deep, progress=progress)

    if kind.name == "b2nd":
        return whole(address)
    if kind.name in ("b2d", "b2z"):
        return _each(address, storage_options, whole, inner, recover=False)
    return _read(kind, address, storage_options, progress=progress)


def _each(
    address: str, storage_options: Storage, whole: Callable[[str], Result], inner: Inner | None, *, recover: bool
) -> Result | Results:
    try:
        home, paths, error = members_of(address, storage_options)
    except FileNotFoundError as missing:
        try:
            return whole(address)  # a directory whose index is missing does not show that it is a frame
        except FileNotFoundError:
            raise missing from None

    def result(path: str) -> Result:
        if isinstance(home, Archive) or (is_embedded(path) and inner is not None):
            if inner is None:
                raise UnsupportedError(f"{home.url} is an archive, which can only be read")
            return inner(f"{home.url}/{path}", lambda: home.open(path, "r").snapshot)
        return whole(home.address(path))

    if inner is None and any(map(is_embedded, paths.values())):
        paths = {name: path for name, path in paths.items() if not is_embedded(path)} | {EMBEDDED: EMBEDDED}
    if list(paths) == [""]:
        return result(paths[""])
    found: dict[str, Result] = {}
    if error is not None:
        found["/"] = Failure(home.url, str(error), isinstance(error, FormatError))
    elif recover and not isinstance(home, Archive):
        home.recover()
    for member, path in paths.items():
        name = f"{member.removesuffix(ATTRS).rstrip('/')}/" if member.rpartition("/")[2] == ATTRS else member
        try:
            found[name] = result(path)
        except (B2ArrayError, OSError) as failed:
            found[name] = Failure(f"{home.url}/{path}", str(failed), isinstance(failed, FormatError))
    return Results(home.url, found)


def _read(kind: Format, address: str, storage_options: Storage, *, progress: bool) -> Result | Results:
    """Read all arrays of a file of another format, by which its library finds damage."""
    found: dict[str, Result] = {}
    url = redact(address)
    with kind.tree(address, storage_options) as tree:
        for name in tree.names:
            where = f"{url}/{name}".rstrip("/")
            report = Report(where, deep=True, layout=kind.name)
            try:
                with tree.open(name) as source, track(source.nbytes, "verifying", progress) as shown:
                    for box in boxes(source.shape, source.chunks or (1,) * len(source.shape), source.dtype.itemsize):
                        shown.advance(source.read(box).nbytes)
                found[name] = report
            except FormatError as error:
                found[name] = Report(where, deep=True, problems=(Problem("chunk", None, "", str(error)),))
    return found[""] if list(found) == [""] else Results(url, found)
