"""One committed state of a frame in a store, which never changes."""

from __future__ import annotations

import operator
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from b2array import threads
from b2array.buffers import Buffer
from b2array.caching import cached
from b2array.codec.chunk import Stored
from b2array.codec.header import Special
from b2array.engine.fetch import Known, Place, Source, Want, fetch, fetch_block
from b2array.errors import B2ArrayError, ChunkMissingError, FormatError, located
from b2array.format import frame, notes
from b2array.format.extras import UNSIZED, Extras
from b2array.format.frame import Frame, FrameType
from b2array.store.base import Mark, Store, in_one_state, marked, where
from b2array.store.spans import Span

__all__ = [
    "FRAME_NAME", "Known", "Place", "Snapshot", "Source", "Want", "fetch", "fetch_block", "load",
    "lost_error", "restore", "whole_chunks",
]  # fmt: skip

FRAME_NAME = "chunks.b2frame"
"""The file of a sparse frame that holds header, index and trailer (Blosc2 Sparse Frame Format)."""

_FIRST_READ = 64 * 2**10
_WINDOW_NBYTES = 32 * 2**20
_WINDOW_CHUNKS = 256
_WINDOWS_UNDER_WAY = 3

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A frame as it was when it was read.

    Parameters
    ----------
    store : Store
        Where it is.
    frame : Frame
        Header, index and trailer.
    start : int
        Where the frame begins in its file, in bytes.
    version : str or None
        The store's version of the file.
    generation : str
        Changes with every commit.
    """

    store: Store
    frame: Frame
    start: int
    version: str | None
    generation: str

    @property
    def url(self) -> str:
        """The store, for messages."""
        return self.store.url

    @property
    def name(self) -> str:
        """The object that holds header, index and trailer."""
        return FRAME_NAME if self.frame.frame_type == FrameType.SPARSE else ""

    @property
    def near(self) -> bool:
        """Whether reading is so fast that every worker may do it for itself."""
        return self.store.appendable

    @property
    def superseded(self) -> bool:
        """Whether the store holds another state by now."""
        try:
            return load(self.store, start=self.start).generation != self.generation
        except (OSError, B2ArrayError):
            return False

    def alike(self, other: Snapshot) -> bool:
        """Whether a chunk's number means the same in another state: metalayers and sizes are equal."""
        a, b = self.frame, other.frame
        return (a.metalayers, a.nbytes, a.chunksize) == (b.metalayers, b.nbytes, b.chunksize)

    @cached
    def heads(self) -> MutableMapping[int, Known]:
        """The heads of chunks, by number, that were read before."""
        return {}

    @cached
    def _extras(self) -> Extras:
        return notes.extras_of(self.frame)

    @cached
    def _sizes(self) -> notes.Sizes:
        return notes.sizes_of(self.frame, self._extras)

    def noted(self, n: int) -> notes.Sizes | None:
        """Return the sizes of chunk `n` and its blocks, or None if they are not known."""
        row: notes.Sizes = self._sizes[n]
        return row if row[0] not in (0, UNSIZED) else None

    def checked(self, n: int) -> bool:
        """Say whether a record of its checksums must follow chunk `n`."""
        return bool(self._sizes[n, 0])

    @cached
    def _ordered(self) -> Int64Array:
        offsets = self.frame.offsets
        return np.append(np.sort(offsets[offsets >= 0]), self.frame.cbytes)

    def place(self, n: int) -> Place | Special:
        """Return where chunk `n` is; in a contiguous frame it may end before the place does.

        Raises
        ------
        ChunkMissingError
            Repairing the frame could not save it.
        """
        where = self.frame.locate(n)
        if n in self._extras.lost:
            raise lost_error(n, self.url)
        return where if isinstance(where, Special) else self.place_of(where)

    def place_of(self, where: int) -> Place:
        """Return the place that an index entry of a stored chunk stands for."""
        if self.frame.frame_type == FrameType.SPARSE:
            return Place(frame.chunk_name(where), 0, -1)
        base = self.start + self.frame.header_len
        following = int(self._ordered[np.searchsorted(self._ordered, where, side="right")])
        return Place("", base + where, base + following)

    def read(self, spans: Sequence[Span], *, clip: bool = False) -> list[memoryview]:
        """Read bytes of the store's objects; `clip`: fewer where an object ends before."""
        return self.store.read(spans, expected=self._expected, clip=clip)

    def gather(self, spans: Sequence[Span], places: Sequence[int], nbytes: int) -> memoryview:
        """Read bytes of the store's objects into one buffer, which this thread uses again for the next call."""
        return self.store.gather(spans, places, nbytes, expected=self._expected)

    @cached
    def _expected(self) -> str | None:
        described = self.frame
        if self.version is None or self.name:
            return None
        mark = Mark(self.start + described.frame_len, described.fingerprint)  # its last bytes, and no other's
        ours = self.store.appendable and described.fingerprint_type == frame.FINGERPRINT_128
        return marked(self.version, mark) if ours else self.version

    def read_heads(self, names: Sequence[str], nbytes: int) -> list[memoryview]:
        """Read the first bytes of objects, fewer of those that are shorter."""
        found = []
        for head in self.store.head(names, nbytes):
            if isinstance(head, Exception):
                raise head
            found.append(head.data)
        return found


def whole_chunks(source: Source, numbers: Sequence[int]) -> Iterator[Stored]:
    """Read chunks, several at a time but not all of them."""
    step = min(max(1, _WINDOW_NBYTES // max(1, source.frame.chunksize)), _WINDOW_CHUNKS)
    windows = ([Want(n, None) for n in numbers[first : first + step]] for first in range(0, len(numbers), step))
    for window in threads.ahead(lambda wants: fetch(source, wants), windows, 1 if source.near else _WINDOWS_UNDER_WAY):
        yield from window


def lost_error(n: int, url: str) -> ChunkMissingError:
    """Make the error of a chunk that is lost."""
    return ChunkMissingError(f"chunk {n} of {url} is lost: a repair of the frame could not save it")


def load(store: Store, *, start: int = 0) -> Snapshot:
    """Read the frame that a store holds now.

    One wave of requests finds out whether the store is one file or a directory, a second one is needed only where
    header, index and trailer take more than 64 KiB.

    Raises
    ------
    FileNotFoundError
        There is neither a frame of its own nor one with chunks beside it.
    FormatError, UnsupportedError
        What is there is not a frame, or one of a kind that is not known.
    ValueError
        The frame would begin before the file does.
    """
    start = operator.index(start)
    if start < 0:
        raise ValueError(f"the offset of a frame in its file must be at least 0, not {start}")
    return in_one_state(lambda: _load(store, start))  # another writer may come between the two waves


def _load(store: Store, start: int) -> Snapshot:
    names = (FRAME_NAME,) if store.is_prefix else ("",) if start else ("", FRAME_NAME)
    heads = store.head(names, _FIRST_READ, offset=start)
    found = [(name, head) for name, head in zip(names, heads, strict=True) if not isinstance(head, Exception)]
    if not found:
        raise _refusal(store, heads)
    # On object stores an empty object may stand for the directory.
    name, head = next((each for each in found if len(each[1].data)), found[0])
    version = head.stamp.version if head.stamp else None
    return located(store.url, partial(_parse, store, name, start, head.data, version))


def restore(store: Store, data: Buffer, version: str | None) -> Snapshot:
    """Read a frame of which `data` has the header at least, and the store the rest. Raises what `load` raises."""
    sparse = frame.unpack_header(data).frame_type == FrameType.SPARSE
    return located(store.url, lambda: _parse(store, FRAME_NAME * sparse, 0, memoryview(data), version))


def _refusal(store: Store, errors: Sequence[object]) -> Exception:
    absent = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
    other = next((error for error in errors if isinstance(error, Exception) and not isinstance(error, absent)), None)
    if other is not None:
        return other
    if any(isinstance(error, IsADirectoryError) for error in errors):
        return FileNotFoundError(
            f"{store.url} is a directory without {FRAME_NAME}: no sparse frame (see b2array.open_group)"
        )
    if store.is_prefix:
        return FileNotFoundError(f"{where(store.url, FRAME_NAME)} does not exist: no sparse frame")
    return FileNotFoundError(f"{store.url} does not exist")


def _parse(store: Store, name: str, start: int, data: memoryview, version: str | None) -> Snapshot:
    header_len = frame.header_nbytes(data)
    if header_len > len(data):
        (data,) = store.read([Span(name, start, start + header_len)], expected=version)
    header = frame.unpack_header(data)
    expected = FrameType.SPARSE if name else FrameType.CONTIGUOUS
    if header.frame_type != expected:
        raise FormatError(f"expected a {expected.name.lower()} frame, found a {header.frame_type.name.lower()} one")
    if header.tail_stop <= len(data):
        tail = data[header.tail_start : header.tail_stop]
    else:
        (tail,) = store.read([Span(name, start + header.tail_start, start + header.tail_stop)], expected=version)
    found = frame.unpack(data, tail)
    if found.fingerprint_type == frame.FINGERPRINT_128:
        generation = found.fingerprint.hex()
    else:
        digest = blake2b(data[:header_len], digest_size=16)
        digest.update(tail)
        digest.update((version or "").encode())
        generation = digest.hexdigest()
    return Snapshot(store, found, start, version, generation)
