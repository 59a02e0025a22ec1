"""Files that no commit refers to: those of killed writers, of writers at work, and of older states.

A write by many workers has a journal where its chunks wait: among the chunks of a sparse frame, or in a directory next
to a file. Its name ends with `JOURNAL`. It says which chunks belong to the write: all of its files count as young as
the youngest of them.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import msgpack
import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.commit.leftovers import belongs, discard
from b2array.errors import FormatError
from b2array.frame.fetch import chunk_number
from b2array.store.base import Listed, Store
from b2array.store.endings import JOURNAL, TEMPORARY
from b2array.store.links import is_link
from b2array.store.local import LocalStore

__all__ = [
    "Journal",
    "directory_beside",
    "find_leftovers",
    "find_orphans",
    "newest_time",
    "of_one_age",
    "read_journal",
    "remove",
    "unneeded_chunks",
]

Int64Array = npt.NDArray[np.int64]

_JOURNAL_NBYTES = 2**16
_TYPES = {"first": int, "id": bytes, "generation": str}


@dataclass(frozen=True, slots=True)
class Journal:
    """The record next to the chunks of a write that is not committed.

    Its files have the number `first` or higher ones. `generation` is the state that it builds on; "" for a new array.

    Examples
    --------
    >>> journal = Journal(3, b"id", "")
    >>> Journal.unpack(journal.pack()) == journal
    True
    """

    first: int
    id: bytes
    generation: str

    def pack(self) -> bytes:
        """Return the journal as bytes."""
        packed: bytes = msgpack.packb(asdict(self))
        return packed

    @classmethod
    def unpack(cls, buf: Buffer) -> Self:
        """Read a journal; raises FormatError if the bytes are not one."""
        try:
            found = msgpack.unpackb(buf)
        except (ValueError, msgpack.UnpackException):
            found = None
        if not isinstance(found, dict) or not all(type(found.get(key)) is kind for key, kind in _TYPES.items()):
            raise FormatError("expected the journal of an interrupted write, found other bytes")
        return cls(**{key: found[key] for key in _TYPES})


def read_journal(store: Store, name: str) -> Journal | None:
    """Read the journal of a write, or return None if there is none."""
    (head,) = store.head([name], _JOURNAL_NBYTES)
    if isinstance(head, FileNotFoundError | NotADirectoryError):
        return None
    if isinstance(head, Exception):
        raise head
    try:
        return Journal.unpack(head.data)
    except FormatError as error:
        raise FormatError(f"{store.url}: {name}: {error}") from None


def directory_beside(url: str, digest: str) -> str:
    """Return the directory next to a file where the chunks of a write into it wait."""
    return f"{url}.{digest}{JOURNAL}{os.sep}"


def unneeded_chunks(files: Iterable[str], numbers: Int64Array) -> list[str]:
    """Return the names of the files of chunks, except the ones with these numbers."""
    names, found = [], array("q")
    for name in files:
        number = chunk_number(name)
        if number is not None:
            names.append(name)
            found.append(number)
    unneeded = np.flatnonzero(~np.isin(np.array(found, np.int64), numbers))
    return [names[row] for row in unneeded.tolist()]


def find_orphans(store: Store, files: Mapping[str, Listed], numbers: Int64Array | None) -> dict[str, Listed]:
    """Find chunks that no index names in a directory or prefix, and the journals of uncommitted writes.

    `numbers` are the files that the index names; None if there is no index, because a new array was never committed.
    All files of one write share the timestamp of its newest file. Other writers take numbers between its own, so every
    file with its first number or a higher one counts as its own.
    """
    needed = np.zeros(0, np.int64) if numbers is None else numbers
    found = {name: files[name] for name in unneeded_chunks(files, needed)}
    writes = [name for name in files if name.endswith(JOURNAL)]
    known = {}
    for name in writes:
        with suppress(FormatError):
            if (journal := read_journal(store, name)) is not None:
                known[name] = journal
    if numbers is None:
        # If an index was lost, its chunks may still be saved: only those that never were in one are orphans.
        first = min((journal.first for journal in known.values() if not journal.generation), default=None)
        found = {name: each for name, each in found.items() if first is not None and _number(name) >= first}
    found |= {name: files[name] for name in writes}
    for name, journal in known.items():
        own = [other for other in found if other == name or _number(other) >= journal.first]
        age = newest_time(found[other] for other in own)
        found |= {other: Listed(found[other].size, age) for other in own}
    return found


def _number(name: str) -> int:
    number = chunk_number(name)
    return -1 if number is None else number


def newest_time(files: Iterable[Listed]) -> float | None:
    """Return when the youngest of some files was written; None if that is not known of all."""
    times = [each.modified for each in files]
    known = [time for time in times if time is not None]
    return max(known, default=None) if len(known) == len(times) else None


def of_one_age(files: Mapping[str, Listed]) -> dict[str, Listed]:
    """Return files as if each was as young as the youngest of them."""
    age = newest_time(files.values())
    return {name: Listed(each.size, age) for name, each in files.items()}


def find_leftovers(store: Store, files: Mapping[str, Listed]) -> dict[str, Listed]:
    """Find what writers did not finish, in a directory, and next to a file or directory.

    What is next to it has its own name, without a path. A directory, whose name ends with a slash, is as young as the
    youngest file in it. A directory with nothing but files of other kinds is not among them.
    """
    found = {name: each for name, each in files.items() if name.endswith(TEMPORARY)}
    beside = {}
    for name, path in _beside(store).items():
        with suppress(FileNotFoundError):
            whole = _measure(path)
            if whole is not None:
                beside[name] = whole
    if any(name.rstrip("/").endswith(JOURNAL) for name in beside):
        # The writer that keeps the journal young may still need the other files, which it wrote long ago.
        beside = of_one_age(beside)
    return found | beside


def _beside(store: Store) -> dict[str, Path]:
    if not isinstance(store, LocalStore):
        return {}
    paths = *_siblings(Path(os.path.realpath(store.url)), TEMPORARY), *_siblings(Path(store.url), JOURNAL)
    return {each.name + "/" * each.is_dir(): each for each in paths}


def _siblings(path: Path, suffix: str) -> Iterator[Path]:
    pattern = re.compile(re.escape(path.name) + r"[.][0-9a-f]{16}" + re.escape(suffix))
    with suppress(FileNotFoundError):
        yield from (each for each in path.parent.iterdir() if pattern.fullmatch(each.name) and not is_link(str(each)))


def _measure(path: Path) -> Listed | None:
    """Return the size of a file, or of the files of frames in a directory, and when the youngest was written."""
    inside = [*path.iterdir()] if path.is_dir() else [path]
    ours = [each for each in inside if each == path or belongs(each.name)]
    if inside and not ours:
        return None
    statuses = [each.lstat() for each in ours]
    return Listed(sum(each.st_size for each in statuses), max(each.st_mtime for each in (path.stat(), *statuses)))


def remove(store: Store, names: Collection[str]) -> None:
    """Remove orphans and leftovers, by the names that `find_orphans` and `find_leftovers` give them.

    Files of other kinds stay.
    """
    beside = _beside(store)
    if not isinstance(store, LocalStore) or Path(store.url).is_dir():
        store.force()
        store.delete(name for name in names if name not in beside)
    for name in beside.keys() & names:
        discard(LocalStore(beside[name], within=beside[name].parent), locked=True)
