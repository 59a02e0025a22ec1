"""Finds files that no commit refers to: files of killed writers, of writers at work, and of older states.

A write by many workers keeps a journal next to its chunks: among the chunks of a sparse frame, or in a directory next
to a contiguous file. The name of the journal ends with `JOURNAL`. It tells which chunks belong to the write. `vacuum`
removes old files, and treats each file of a write as being as new as the newest file of the write.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import msgpack
import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.commit.leftovers import belongs, discard
from b2array.errors import FormatError
from b2array.format.index import chunk_number
from b2array.format.ledger import DIGEST_NBYTES, seal, unseal
from b2array.store.base import Listed, Store
from b2array.store.endings import JOURNAL, TEMPORARY
from b2array.store.links import is_link
from b2array.store.local_store import LocalStore

__all__ = [
    "Journal",
    "directory_beside",
    "find_leftovers",
    "find_orphans",
    "newest_time",
    "read_journal",
    "remove",
    "unneeded_chunks",
    "with_newest_time",
]

Int64Array = npt.NDArray[np.int64]

_JOURNAL_NBYTES = 2**16
_TYPES = {"first": int, "id": bytes, "generation": str}


@dataclass(frozen=True, slots=True)
class Journal:
    """The record next to the chunks of a write that is not committed.

    Parameters
    ----------
    first : int
        The lowest number of the files of the write.
    id : bytes
        The identity of the transaction.
    generation : str
        The state that the write starts from; "" for a new array.

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
        """Return the journal as bytes, with a digest at the end."""
        packed: bytes = msgpack.packb(asdict(self))
        return seal(packed)

    @classmethod
    def unpack(cls, buf: Buffer) -> Self:
        """Read a journal; raise FormatError if the bytes are not a journal, or damaged."""
        packed = unseal(buf, bytes(buf[-DIGEST_NBYTES:]), "the journal of an interrupted write")
        content: Any = None
        # Bytes that msgpack cannot unpack fail the check below.
        with suppress(ValueError, msgpack.UnpackException):
            content = msgpack.unpackb(packed)
        fields = content if isinstance(content, dict) else {}
        if not all(type(fields.get(key)) is kind for key, kind in _TYPES.items()):
            raise FormatError("expected the journal of an interrupted write, found other bytes")
        return cls(**{key: fields[key] for key in _TYPES})


def read_journal(store: Store, name: str) -> Journal | None:
    """Read and return the journal with a name; None if it does not exist, FormatError if it is damaged."""
    (head,) = store.head([name], _JOURNAL_NBYTES)
    if isinstance(head, FileNotFoundError | NotADirectoryError):
        return None
    if isinstance(head, Exception):
        raise head
    try:
        return Journal.unpack(head.data)
    except FormatError as error:
        raise FormatError(f"{store.url}: {name}: {error}") from None


def directory_beside(url: str, token: str) -> str:
    """Return the path of the directory next to a file in which the chunks of forks wait for the commit.

    `token` has 16 hexadecimal digits, and names the write.
    """
    return f"{url}.{token}{JOURNAL}{os.sep}"


def unneeded_chunks(files: Iterable[str], numbers: Int64Array) -> list[str]:
    """Return the names of the chunk files among `files`, except the ones with these numbers."""
    names = []
    # There may be millions: a list of int would take four times the memory.
    existing = array("q")
    for name in files:
        number = chunk_number(name)
        if number is not None:
            names.append(name)
            existing.append(number)
    needed = np.isin(np.array(existing, np.int64), numbers)
    return [names[row] for row in np.flatnonzero(~needed).tolist()]


def find_orphans(
    store: Store,
    files: Mapping[str, Listed],
    numbers: Int64Array | None,
) -> dict[str, Listed]:
    """Find the chunks in a directory or prefix that no index names, and the journals of uncommitted writes.

    This reads the journals. All files of one write get the timestamp of its newest file. Other writers may use numbers
    between the numbers of a write, so this treats every file from the first number of the write on as part of it.

    Parameters
    ----------
    store : Store
        The directory or prefix.
    files : mapping of str to Listed
        The files in it, by name.
    numbers : array of int64, optional
        The numbers of the files that the index names; None without an index, because a new array was never committed.
    """
    needed = np.zeros(0, np.int64) if numbers is None else numbers
    orphans = {name: files[name] for name in unneeded_chunks(files, needed)}
    names = [name for name in files if name.endswith(JOURNAL)]
    journals = {}
    for name in names:
        # A damaged journal protects no chunks, and is an orphan itself.
        with suppress(FormatError):
            journal = read_journal(store, name)
            if journal is not None:
                journals[name] = journal
    if numbers is None:
        # A lost index may be repaired from its chunks. Only chunks of an array that never had an index are orphans.
        of_new_arrays = [journal for journal in journals.values() if not journal.generation]
        first = min((journal.first for journal in of_new_arrays), default=None)
        orphans = {name: each for name, each in orphans.items() if _is_from(name, first)}
    orphans |= {name: files[name] for name in names}
    for name, journal in journals.items():
        own = {other: each for other, each in orphans.items() if _is_from(other, journal.first)}
        own[name] = files[name]
        orphans |= with_newest_time(own)
    return orphans


def _is_from(name: str, first: int | None) -> bool:
    """Whether a name is of a chunk file with the number `first` or a higher one; never if `first` is None."""
    number = chunk_number(name)
    return number is not None and first is not None and number >= first


def newest_time(files: Iterable[Listed]) -> float | None:
    """Return the time of the newest file among some files; None without files, or if the time of one is unknown."""
    newest: float | None = None
    for each in files:
        if each.modified is None:
            return None
        newest = each.modified if newest is None else max(newest, each.modified)
    return newest


def with_newest_time(files: Mapping[str, Listed]) -> dict[str, Listed]:
    """Return files, each with the timestamp of the newest of them; without timestamps if one is unknown."""
    newest = newest_time(files.values())
    return {name: Listed(each.size, newest) for name, each in files.items()}


def find_leftovers(store: Store, files: Mapping[str, Listed]) -> dict[str, Listed]:
    """Find the files of unfinished writes among the `files` in a frame's directory, and next to the frame; list them.

    A file or directory next to the frame is listed by its name without a path. The name of a directory ends with a
    slash, and its timestamp is the timestamp of the newest file in it. A directory with only files of other kinds is
    not listed.
    """
    inside = {name: each for name, each in files.items() if name.endswith(TEMPORARY)}
    beside = {}
    for name, path in _find_beside(store).items():
        # A writer may finish, and remove its files, at any moment.
        with suppress(FileNotFoundError):
            listed = _measure(path)
            if listed is not None:
                beside[name] = listed
    if any(name.rstrip("/").endswith(JOURNAL) for name in beside):
        # The writer that rewrites the journal may still need the other files, which it wrote long ago.
        beside = with_newest_time(beside)
    return inside | beside


def _find_beside(store: Store) -> dict[str, Path]:
    """List the temporary files and journals next to a local frame: their paths, by name.

    The name of a directory ends with a slash. Other stores have no such files.
    """
    if not isinstance(store, LocalStore):
        return {}
    path = Path(store.url)
    # Writers stage a file next to the target of a link, but a journal next to the link itself.
    real_path = Path(os.path.realpath(path))
    paths = [*_siblings(real_path, TEMPORARY), *_siblings(path, JOURNAL)]
    return {each.name + "/" * each.is_dir(): each for each in paths}


def _siblings(path: Path, suffix: str) -> Iterator[Path]:
    """List the directory of a path; yield the files whose names add a token and a suffix to its name, except links."""
    name = re.escape(path.name)
    pattern = re.compile(f"{name}[.][0-9a-f]{{16}}{re.escape(suffix)}")
    # If the directory of a file does not exist, no files are next to it.
    with suppress(FileNotFoundError):
        for each in path.parent.iterdir():
            if pattern.fullmatch(each.name) and not is_link(str(each)):
                yield each


def _measure(path: Path) -> Listed | None:
    """Read the size and the time of a file; for a directory, the total size of its frame files and the latest time.

    None for a directory with only files of other kinds.
    """
    inside = [*path.iterdir()] if path.is_dir() else [path]
    ours = [each for each in inside if each == path or belongs(each.name)]
    if inside and not ours:
        return None
    statuses = [each.lstat() for each in ours]
    size = sum(each.st_size for each in statuses)
    newest = max(each.st_mtime for each in (path.stat(), *statuses))
    return Listed(size, newest)


def remove(store: Store, names: Collection[str]) -> None:
    """Remove orphans and leftovers by their names, as `find_orphans` and `find_leftovers` return them.

    Before that, this forces the store to the disk. Files of other kinds stay.
    """
    beside = _find_beside(store)
    if not isinstance(store, LocalStore) or Path(store.url).is_dir():
        store.force()
        store.delete(name for name in names if name not in beside)
    for name in beside.keys() & names:
        path = beside[name]
        discard(LocalStore(path, within=path.parent), locked=True)
