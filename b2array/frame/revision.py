"""`Revision`: one committed state of a frame, an object that never changes; `read_frame` reads it from a store.

A frame has an `Owner`, which knows where the present state is. This package only asks the owner: `b2array.catalog`
defines the kinds of owners, and loads frames with the owners that they have.
"""

from __future__ import annotations

import operator
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.buffers import Buffer, scratch
from b2array.codec.chunk_header import Special
from b2array.errors import (
    B2ArrayError,
    ConflictError,
    FormatError,
    SnapshotLostError,
    UnsupportedError,
    prefix_error,
)
from b2array.format import foreign, frame, index
from b2array.format.checksums import record_nbytes
from b2array.format.frame import FINGERPRINT_NBYTES, Frame
from b2array.format.frame_header import FrameType, header_nbytes, unpack_header
from b2array.format.index import chunk_number
from b2array.format.ledger import Kept
from b2array.format.state import State, parse, with_index
from b2array.frame.source import FRAME_NAME, CachedHead, Location, Source
from b2array.store.base import (
    ContentName,
    Head,
    HiddenError,
    Store,
    Tail,
    Version,
    join_views_at,
    moved_away,
    read_whole,
    says_more,
    stale_reader,
    too_short,
    where,
)
from b2array.store.spans import Span

__all__ = [
    "Owner",
    "Revision",
    "head_if_unchanged",
    "is_of_zarr",
    "load_from_header",
    "lost_snapshot",
    "read_frame",
    "read_named",
    "wrong_kind",
]

_FIRST_READ = 64 * 2**10
_LAST_READ = 64 * 2**10
"""The numbers of bytes read from the beginning and from the end of a file in the first wave of requests."""
_MOST_CONTENTS = 16 * 2**10
"""A frame of at most this many bytes stays in memory if the first wave of requests has read all of it."""
_PICKLED_NBYTES = 2**16
"""Pickles leave out tables of sizes with more bytes, if only writers need them."""
_MANY_CHUNKS = 2**18
_FEW_SEARCHES = 8
"""An index of at least `_MANY_CHUNKS` chunks is searched `_FEW_SEARCHES` times before a sorted copy is made."""


class Owner(Protocol):
    """What knows which state of a frame counts: the frame alone, or a group.

    Owners are values, and can be pickled.
    """

    may_move: ClassVar[bool]
    """Whether a commit of the group may move the bytes of this state to another place."""
    lists_revisions: ClassVar[bool]
    """Whether the manifest of a group names the state that counts: then only the group may replace the frame."""

    def load(self, last: Revision, *, even_new: bool = False) -> Revision:
        """Load the present state of a frame, given a state that was read before.

        Without later commits, this reuses the parsed frame. For a kept state, load that state again.

        Parameters
        ----------
        last : Revision
            The state that was read before.
        even_new : bool
            Whether the present frame may be another one, made in the place of the old one.

        Raises
        ------
        FileNotFoundError
            There is no frame any more, or the group does not list it any more.
        ConflictError
            Another frame is in the place, and not `even_new`; or the kept state was dropped.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Revision(Source):
    """One committed state of a frame in a store, as it was when it was read.

    Parameters
    ----------
    store : Store
        The store of the frame.
    state : State
        The parsed frame.
    start : int
        The offset of the frame in its file.
    version : Version or None
        The store's version of the file with the index.
    generation : str
        The name of the state, which changes with every commit.
    owner : Owner
        Knows which state of the frame counts.
    unique : str
        The identity of the file; see `b2array.store.base.Head`.
    header : bytes
        The stored header. Empty for a kept state, and after unpickling.
    at : Kept, optional
        For a kept state, its entry in the frame's ledger.
    ends : tuple of Tail
        The ends of the file that were read with the index.
    contents : bytes
        All bytes of a small contiguous frame, if they were read with the index; then no read asks the store.
    name : str
        The object that holds header, index and trailer; by default the usual one.
    title : str
        The name of the group's snapshot through which the user opened this state.
    """

    store: Store
    state: State
    start: int
    version: Version | None
    generation: str
    owner: Owner
    unique: str = ""
    header: bytes = b""
    at: Kept | None = None
    ends: tuple[Tail, ...] = ()
    contents: bytes = b""
    name: str = ""
    title: str = ""
    buffer: ClassVar[None] = None
    frame: Frame = field(init=False)
    sparse: bool = field(init=False)
    is_local: bool = field(init=False)
    heads: MutableMapping[int, CachedHead] = field(init=False, default_factory=dict)
    cache_key: object | None = field(init=False)
    _expected: Version | None = field(init=False)
    _is_unchecked: bool = field(init=False)
    trusts_disk: bool = field(init=False, default=True)
    _names: dict[int, tuple[ContentName | None, int]] = field(init=False, default_factory=dict)
    _ordered: npt.NDArray[np.int64] | None = field(init=False, default=None)
    _by_entry: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = field(init=False, default=None)
    _searches: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        described = self.state.frame
        is_ours = described.is_ours
        expected = None if described.frame_type == FrameType.SPARSE else self.version
        # If the group has packed the state, no bytes of the file identify it: `version` has bytes of a later state.
        is_packed_elsewhere = self.at is not None and bool(self.at.packed)
        if expected is not None and self.store.can.local and is_ours and not is_packed_elsewhere:
            expected = Version(expected.tag, expected.state, *self._last_bytes())
        object.__setattr__(self, "frame", described)
        if not self.name and described.frame_type == FrameType.SPARSE:
            object.__setattr__(self, "name", FRAME_NAME)
        object.__setattr__(self, "sparse", described.frame_type == FrameType.SPARSE)
        object.__setattr__(self, "is_local", self.store.can.local or bool(self.contents))
        object.__setattr__(self, "_expected", expected)
        # Other software writes no checksums, and changes chunks in their places.
        unchecked = (
            self.store.can.local
            and not self.contents
            and not self.store.in_process
            and self.version is not None
            and not is_ours
        )
        object.__setattr__(self, "_is_unchecked", unchecked)
        object.__setattr__(self, "cache_key", self._new_cache_key(is_ours=is_ours))

    @property
    def shown_at(self) -> str:
        """The name of the user's snapshot that this state belongs to; "" for a state that is not old."""
        return self.title or ("" if self.at is None else self.at.name)

    @property
    def expected_version(self) -> Version | None:
        """The version that the file or object must have during a read; None if reads do not compare versions."""
        return self._expected

    def _last_bytes(self) -> tuple[bytes, int]:
        """Return the last bytes of this state, which no other file has at the same place, and their end in the file."""
        described = self.state.frame
        if self.at is None:
            return described.fingerprint, self.start + described.frame_len
        stop = described.header_len + self.at.place + self.at.nbytes
        return self.at.digest, self.start + stop

    def _new_cache_key(self, *, is_ours: bool) -> object | None:
        """Return the key of this frame's blocks in the cache; None if they must not be cached.

        Two revisions have equal keys only if their blocks are equal. A key consists of the place and state of the file
        (`unique`: the store, the object, its version), the frame's start in it, and the generation. All of these are
        needed: files can be exact copies of each other, a file can contain many frames, and other software rewrites
        chunks without a change of header, index or trailer.

        In some cases, these parts do not distinguish all states: for directories, because each chunk has another
        version; for local files that were changed a moment ago; for states that this process committed or unpickled;
        and for frames by b2array in stores without versions, such as HTTP. Then no other revision gets the same key, so
        that a refresh or another open starts with an empty cache. Frames by other software in such stores are not
        cached at all.
        """
        if not is_ours and not self.version:
            return None
        if self.sparse or not self.unique:
            return object()
        parts = self.unique, self.start, self.generation
        return blake2b(repr(parts).encode(), digest_size=16).digest()

    def staleness(self) -> ConflictError | None:
        """Load the present state: return the error for a reader if this state does not count any more; otherwise None.

        None as well if the store fails, because then the answer is unknown.
        """
        try:
            current = self.owner.load(self)
        except FileNotFoundError as error:
            is_hidden = isinstance(error, HiddenError)
            return None if is_hidden else moved_away(self.url)
        except ConflictError as error:
            return error
        except FormatError:
            # On a disk, the file may be damaged. In an object store, another writer has replaced the object.
            is_replaced = not self.store.can.local and self._is_replaced()
            return stale_reader(self.url) if is_replaced else None
        except (OSError, B2ArrayError):
            # If the store fails, the answer is unknown, and the caller raises its first error.
            return None
        if self.at is not None and current.at is not None and current.at.suspect:
            return lost_snapshot(self.url, self.at.title)
        is_same = current.generation == self.generation and current.at == self.at
        return None if is_same else stale_reader(self.url)

    def _is_replaced(self) -> bool:
        """Read the header: whether the store has another one now, or nothing that can be read; False if unknown."""
        if not self.header:
            return False
        try:
            return head_if_unchanged(self.store, self.frame, self.header, self.start) is None
        except (OSError, B2ArrayError):
            return True

    def has_same_chunks(self, other: Revision) -> bool:
        """Whether each number stands for the same chunk in another state, because metalayers and sizes are equal."""
        a, b = self.frame, other.frame
        has_same_sizes = a.nbytes == b.nbytes and a.chunksize == b.chunksize
        return has_same_sizes and a.metalayers == b.metalayers

    def locate(self, n: int) -> Location | Special:
        """Return where chunk `n` is; ChunkLostError if it is lost. In a contiguous frame it may end before `stop`."""
        entry = self.entry(n)
        return entry if isinstance(entry, Special) else self.location_of(entry)

    def locate_unchecked(self, n: int) -> Location | Special:
        """Do the same as `locate` without a check for a lost chunk, which would unpack the annotations."""
        offsets = self.frame.offsets
        entry = int(offsets[n]) if 0 <= n < len(offsets) else -1
        # Special values, and numbers out of range, are the rare cases.
        return self.locate(n) if entry < 0 else self.location_of(entry)

    def location_of(self, entry: int) -> Location:
        """Return where a stored chunk is, given its entry in the index."""
        described = self.frame
        if described.frame_type == FrameType.SPARSE:
            return Location(index.chunk_name(entry), 0, -1)
        base = self.start + described.header_len
        # The index does not say where a chunk ends, but no chunk extends beyond the start of the next one.
        stop = self._next_entry(entry)
        if stop is None:
            stop = described.cbytes
        return Location("", base + entry, base + stop)

    def _next_entry(self, entry: int) -> int | None:
        """Return the least entry of the index that is larger than this one; None for the largest entry."""
        offsets, ordered = self.frame.offsets, self._ordered
        if ordered is None:
            is_long = len(offsets) >= _MANY_CHUNKS
            if is_long and self._searches < _FEW_SEARCHES:
                # An ordered copy of a long index takes more memory and time than a few searches of the whole index.
                object.__setattr__(self, "_searches", self._searches + 1)
                return index.least_after(offsets, entry)
            ordered = offsets[offsets >= 0]
            ordered.sort()
            object.__setattr__(self, "_ordered", ordered)
        after = bisect_right(ordered, entry)
        return int(ordered[after]) if after < len(ordered) else None

    def read(
        self,
        spans: Sequence[Span],
        *,
        clip: bool = False,
    ) -> list[memoryview]:
        """Read bytes of the store's objects; with `clip`, an object may end before a span does."""
        if self.contents:
            return [self._view(span, clip=clip) for span in spans]
        if self._uses_disk:
            return self.store.read_through(
                spans,
                self.contents_of(spans),
                expected=self._expected,
                clip=clip,
                split=None if self.sparse else self._split,
            )
        return self.read_afresh(spans, clip=clip)

    def read_afresh(
        self,
        spans: Sequence[Span],
        *,
        clip: bool = False,
    ) -> list[memoryview]:
        """Do the same as `read` without the cache on disk, for writers."""
        if self.contents:
            return [self._view(span, clip=clip) for span in spans]
        views = self.store.read(spans, expected=self._expected, clip=clip)
        if self._is_unchecked:
            self._require_unchanged()
        return views

    # The cache on disk.

    @property
    def _uses_disk(self) -> bool:
        """Whether reads use the cache on disk."""
        return config.disk_cache is not None and self.trusts_disk and not self.store.can.local

    def without_disk_cache(self) -> Revision:
        """Return the same state; its reads do not use the cache on disk, and neither do the states that it keeps."""
        copied = replace(self)
        object.__setattr__(copied, "trusts_disk", False)
        return copied

    def contents_of(self, spans: Sequence[Span]) -> list[ContentName | None]:
        """Return a name for the bytes of each span in the cache on disk; None for bytes that it must not keep.

        The name of a chunk by b2array has the identity of the frame, the chunk's place (its number in a contiguous
        frame, its file in a sparse one), its sizes, and the checksum of its record of checksums, which depends on every
        byte. So later states have the same name for a chunk that they did not change, wherever it is, and a frame that
        is deleted and made again has other names. Other bytes of a contiguous frame are named by the version of its
        file and by its generation. Other objects of a sparse frame have no name.

        Without versions, a store cannot say whether the index, to which all of this refers, is the present one.
        """
        if not self._is_named:
            return [None] * len(spans)
        return [self._content_of(span) for span in spans]

    @property
    def _is_named(self) -> bool:
        """Whether chunks of this state have names that no other bytes get."""
        is_ours = self.frame.is_ours
        # Other software changes chunks in their places.
        return self.version is not None and (is_ours or (not self.sparse and self.store.may_keep(self.version)))

    def _content_of(self, span: Span) -> ContentName | None:
        """Return the name of the bytes of a span in the cache on disk; None for bytes that it must not keep."""
        entry = chunk_number(span.name) if self.sparse else span.start - self.start - self.frame.header_len
        n = self._number_of(entry)
        if n is None:
            return None if self.sparse else self._content_of_version(0)
        return self._content_of_chunk(n, span)

    def _content_of_chunk(self, n: int, span: Span) -> ContentName | None:
        """Return the name of the bytes of a span that begins in chunk `n`; None for bytes that have no name."""
        named = self._names.get(n) or self._name_chunk(n)
        content, stop = named
        if content is not None and span.stop <= stop:
            return content
        if self.sparse:
            return None
        base = self.start + self.frame.header_len + int(self.frame.offsets[n])
        return self._content_of_version(base)

    def _name_chunk(self, n: int) -> tuple[ContentName | None, int]:
        """Return the name of the bytes of chunk `n`, and where they end; None if only the file's version names them.

        This remembers the result.
        """
        described, state = self.frame, self.state
        record = int(state.records[n])
        identity = state.annotations.identity
        nbytes = self._nbytes_with_record(n)
        content, stop = None, 0
        if record and nbytes and identity and described.is_ours:
            entry = int(described.offsets[n])
            part: object = n
            base, stop = self.start + described.header_len + entry, sys.maxsize
            if self.sparse:
                part, base = index.chunk_name(entry), 0
            else:
                stop = base + nbytes
            parts = identity, part, record, state.sizes[n].tobytes()
            name = blake2b(repr(parts).encode(), digest_size=16).digest()
            content = ContentName(name, base)
        self._names[n] = content, stop
        return content, stop

    def _split(self, span: Span) -> Iterator[tuple[Span, ContentName | None]]:
        """Yield the parts of a range of a contiguous frame that belong to chunks, each with its name."""
        first = self.start + self.frame.header_len
        entries, numbers = self._numbers_by_entry()
        low, high = np.searchsorted(entries, [span.start - first, span.stop - first])
        # The range may begin inside a chunk.
        low = max(0, low - 1)
        for entry, n in zip(entries[low:high].tolist(), numbers[low:high].tolist(), strict=True):
            _, start, stop = self.location_of(entry)
            nbytes = self._nbytes_with_record(n)
            if nbytes:
                stop = min(stop, start + nbytes)
            part = Span(span.name, max(start, span.start), min(stop, span.stop))
            if part.start < part.stop:
                (content,) = self.contents_of([part])
                yield part, content

    def _nbytes_with_record(self, n: int) -> int:
        """Return the size of a chunk with the record of its checksums; 0 if it is not noted."""
        cbytes = int(self.state.sizes[n, 0])
        layout = self.state.layout
        if layout is not None and layout.is_text:
            return cbytes + record_nbytes(layout.nblocks) if cbytes else 0
        nbytes, blocksize = self.frame.chunk_nbytes(n), self.frame.blocksize
        if not (cbytes and nbytes and blocksize):
            return 0
        return cbytes + record_nbytes(-(-nbytes // blocksize))

    def _content_of_version(self, base: int) -> ContentName:
        """Return a name for bytes of a contiguous frame in this state alone."""
        parts = self.version, self.start, self.generation, base
        return ContentName(blake2b(repr(parts).encode(), digest_size=16).digest(), base)

    def _number_of(self, entry: int | None) -> int | None:
        """Return the number of the chunk with the largest entry up to this one; in a sparse frame, with this entry."""
        entries, numbers = self._numbers_by_entry()
        if entry is None:
            return None
        after = int(np.searchsorted(entries, entry, side="right"))
        if not after or (self.sparse and entries[after - 1] != entry):
            return None
        # Several numbers may stand for one chunk: take the first.
        first = int(np.searchsorted(entries, entries[after - 1], side="left"))
        return int(numbers[first])

    def _numbers_by_entry(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the entries of stored chunks in increasing order, and the numbers of these chunks."""
        by_entry = self._by_entry
        if by_entry is None:
            offsets = self.frame.offsets
            numbers = np.flatnonzero(offsets >= 0)
            numbers = numbers[np.argsort(offsets[numbers], kind="stable")]
            by_entry = offsets[numbers], numbers
            object.__setattr__(self, "_by_entry", by_entry)
        return by_entry

    def forget(self, numbers: Sequence[int]) -> bool:
        """Remove chunks from the cache on disk; return whether any of them was there."""
        if not self._uses_disk or self.contents:
            return False
        locations = [location for n in numbers if isinstance(location := self.locate_unchecked(n), Location)]
        spans = [Span(location.name, location.start, location.start + 1) for location in locations]
        return self.store.forget(spans, self.contents_of(spans))

    def not_on_disk(self, spans: Sequence[Span]) -> tuple[list[Span], int]:
        """Return the ranges that `read` would now request, and the number of bytes that the cache on disk has."""
        if not self._uses_disk:
            return [*spans], 0
        return self.store.not_on_disk(spans, self.contents_of(spans))

    def gather(
        self,
        spans: Sequence[Span],
        places: Sequence[int],
        nbytes: int,
    ) -> memoryview:
        """Read each span to its place in one buffer, whose memory is reused after the last reference to it is gone."""
        if self.contents:
            # Sizes come from the frame: check them before memory is allocated.
            views = [self._view(span, clip=False) for span in spans]
            buffer = scratch("contents", nbytes, _MOST_CONTENTS).data
            for view, place in zip(views, places, strict=True):
                buffer[place : place + len(view)] = view
            return buffer
        view = self.store.gather(spans, places, nbytes, expected=self._expected)
        if self._is_unchecked:
            self._require_unchanged()
        return view

    def gather_from_disk(
        self,
        n: int,
        spans: Sequence[Span],
        places: Sequence[int],
        nbytes: int,
    ) -> memoryview | None:
        """Gather bytes of a chunk that are in the cache on disk; None if that does not have all of them."""
        if not (self._uses_disk and self._is_named):
            return None
        contents = [self._content_of_chunk(n, span) for span in spans]
        views = self.store.find_on_disk(spans, contents)
        return None if views is None else join_views_at(views, places, nbytes)

    def _view(self, span: Span, *, clip: bool) -> memoryview:
        """Return bytes of a frame that is in memory; FormatError if the frame ends before them."""
        _, start, stop = span
        view = memoryview(self.contents)[start - self.start : stop - self.start]
        if len(view) < stop - start and not clip:
            raise too_short(self.url, start, stop, len(view))
        return view

    def __reduce__(self) -> tuple[Any, ...]:
        thin, index = self.state.without_index(_PICKLED_NBYTES)
        return _unpickle, (
            self.store,
            thin,
            index,
            self.start,
            self.version,
            self.generation,
            self.owner,
            self.at,
            self.name,
            self.title,
        )

    def _require_unchanged(self) -> None:
        """Raise ConflictError if another writer has changed the file since it was opened.

        Call this after reading a frame without checksums, because such a read does not notice bytes of another state.
        """
        try:
            current = self.store.stamp_read(self.name).version
        except HiddenError:
            raise
        except FileNotFoundError:
            raise moved_away(self.url) from None
        if current != self.version:
            raise stale_reader(self.url)


def _unpickle(
    store: Store,
    thin: Frame,
    index: bytes,
    start: int,
    version: Version | None,
    generation: str,
    owner: Owner,
    at: Kept | None,
    name: str,
    title: str,
) -> Revision:
    """Restore a pickled revision from a frame without an index, the packed index, and other fields."""
    state = with_index(thin, index)
    return Revision(store, state, start, version, generation, owner, at=at, name=name, title=title)


def lost_snapshot(url: str, title: str) -> SnapshotLostError:
    """Return the error of a snapshot whose data other software has overwritten."""
    return SnapshotLostError(
        f"{url}: other software has changed the frame since the snapshot {title} was made, and took data of it"
    )


# Reading.


def read_frame(
    store: Store,
    owner: Owner,
    *,
    start: int = 0,
    bare: bool = False,
    with_contents: bool = False,
    sparse: bool | None = None,
    cached: bool = False,
    accepts: Callable[[Version], bool] | None = None,
) -> Revision:
    """Read the frame that is in a store, even if its group lists another state.

    One wave of requests finds out whether the store is one file or a directory, and reads the first 64 KiB of the file
    and, if the server supports that, the last 64 KiB. More requests follow if index and trailer are elsewhere, or if
    another writer has changed the file between these requests.

    Parameters
    ----------
    store : Store
        The store.
    owner : Owner
        Commits for the frame.
    start : int
        The offset of the frame in its file.
    bare : bool
        Whether to leave out index and layout, because the caller only opens kept states of the frame.
    with_contents : bool
        Whether the revision of a small frame keeps all bytes of the frame, if they were read with the index. Groups
        open their members this way, because readers such as xarray need coordinates at once. Other handles ask the
        store for items, and so notice that something else has replaced the file.
    sparse : bool, optional
        Whether the frame is sparse. If the caller knows, this takes fewer requests.
    cached : bool
        Whether the bytes may come from the cache on disk, if the server says that they are still the same. Writers
        read them again.
    accepts : callable, optional
        Whether bytes of a version may come from there although the server is not asked.

    Raises
    ------
    FileNotFoundError
        There is no frame.
    """
    start = operator.index(start)
    if start < 0:
        raise ValueError(f"the offset of a frame in its file must be at least 0, not {start}")
    read = partial(_read_once, store, owner, start, bare=bare, with_contents=with_contents, sparse=sparse)
    for _ in range(config.retries):
        # Another writer may have changed the file between two waves of requests: try again.
        with suppress(ConflictError):
            return read(cached=cached, accepts=accepts)
    return read()


def _read_once(
    store: Store,
    owner: Owner,
    start: int,
    *,
    bare: bool,
    with_contents: bool,
    in_one_wave: bool = True,
    sparse: bool | None = None,
    cached: bool = False,
    accepts: Callable[[Version], bool] | None = None,
) -> Revision:
    """Read the frame that is in a store, once; the parameters are as for `read_frame`.

    With `in_one_wave`, one wave of requests reads the beginning and the end of a file. ConflictError: another writer
    has changed the file between two requests.
    """
    if sparse is None and store.is_prefix:
        sparse = True
    elif sparse is None and start:
        # A frame that begins later in its file cannot be a directory.
        sparse = False
    names = ("", FRAME_NAME) if sparse is None else (FRAME_NAME if sparse else "",)
    tail = None
    is_alone = bool(start or store.is_prefix or not in_one_wave or sparse)
    if cached:
        last = 0 if is_alone else _LAST_READ
        heads, tail = store.ends_through(names, _FIRST_READ, last, offset=start, accepts=accepts)
    elif is_alone:
        heads = store.head(names, _FIRST_READ, offset=start)
    else:
        heads, tail = store.ends(names, _FIRST_READ, _LAST_READ)
    objects = [(name, head) for name, head in zip(names, heads, strict=True) if not isinstance(head, Exception)]
    if not objects:
        if isinstance(heads[0], IsADirectoryError) and isinstance(heads[-1], NotADirectoryError):
            # Another writer has replaced the directory by a file between the two looks.
            raise stale_reader(store.url)
        raise _refusal(store, heads)
    name, head = objects[0]
    if not head.data:
        # In object stores, an empty object may stand for the directory.
        name, head = objects[-1]
    version = head.version
    parse_head = partial(_parse_frame, store, name, owner, head, version, start, bare=bare, cached=cached)
    if tail is None or name or tail.version != version:
        return parse_head(with_contents=with_contents)
    try:
        return parse_head(tail, with_contents=with_contents)
    except FormatError:
        if version:
            raise
        # Without versions, only this error shows that the beginning and the end belong to different states.
        return _read_once(store, owner, start, bare=bare, with_contents=with_contents, in_one_wave=False)


def read_named(
    store: Store,
    owner: Owner,
    name: str,
    *,
    bare: bool = False,
    with_contents: bool = False,
    cached: bool = False,
) -> Revision:
    """Read the frame whose header is in an object with this name, which no other bytes ever get.

    Parameters and errors are as for `read_frame`.
    """
    read = partial(_parse_frame, store, name, owner, bare=bare, with_contents=with_contents)
    if cached and config.disk_cache is not None:
        (head,), _ = store.ends_through([name], _FIRST_READ, accepts=lambda _: True)
        # A copy that cannot be read is read again.
        with suppress(FormatError, UnsupportedError):
            if isinstance(head, Exception):
                raise head
            return read(head, head.version, cached=True)
    (head,) = store.head([name], _FIRST_READ)
    if isinstance(head, Exception):
        raise head
    return read(head, head.version)


def head_if_unchanged(
    store: Store,
    described: Frame,
    header: bytes,
    start: int = 0,
    name: str = "",
) -> Head | None:
    """Read and return the beginning of a frame by b2array if the store still has this state; otherwise None.

    `name` is the object with the header, if that is not the usual one.
    """
    if not name and described.frame_type == FrameType.SPARSE:
        name = FRAME_NAME
    stop = described.frame_len
    # A small frame is read as a whole, so its fingerprint takes no further request.
    wanted = stop if stop <= _FIRST_READ else len(header)
    (head,) = store.head([name], wanted, offset=start)
    if isinstance(head, Exception) or head.data[: len(header)] != header:
        return None
    first = stop - FINGERPRINT_NBYTES
    tail = head.data[first:]
    if wanted < stop:
        (tail,) = store.read([Span(name, start + first, start + stop)], clip=True)
    return head if tail == described.fingerprint else None


def load_from_header(
    store: Store,
    owner: Owner,
    data: Buffer,
    version: Version | None,
    unique: str = "",
) -> Revision:
    """Read a frame whose header the caller has: `data` contains it, and perhaps more.

    Raises the errors of `read_frame`. `version` and `unique` describe the object with the frame, as a `Head` of the
    store does.
    """
    try:
        sparse = unpack_header(data).frame_type == FrameType.SPARSE
    except (FormatError, UnsupportedError) as error:
        raise prefix_error(store.url, error) from error
    head = Head(memoryview(data), None, unique)
    return _parse_frame(store, FRAME_NAME if sparse else "", owner, head, version, with_contents=True)


def _refusal(store: Store, errors: Sequence[object]) -> Exception:
    """Return the error for a store without a frame, given the errors of its requests."""
    absent = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
    for error in errors:
        if isinstance(error, HiddenError):
            return error
        if isinstance(error, Exception) and (says_more(error) or not isinstance(error, absent)):
            return error
    if is_of_zarr(store):
        return FileNotFoundError(foreign.zarr_text(store.url))
    if any(isinstance(error, IsADirectoryError) for error in errors):
        return FileNotFoundError(f"{store.url} is a directory without {FRAME_NAME}: no sparse frame")
    if store.is_prefix:
        path = where(store.url, FRAME_NAME)
        return FileNotFoundError(f"{path} does not exist: no sparse frame")
    return FileNotFoundError(f"{store.url} does not exist")


def is_of_zarr(store: Store) -> bool:
    """Return whether a directory has files of zarr."""
    # Each answer of an HTTP server may take a second, so look for objects of zarr only if the URL suggests them.
    may_be_zarr = store.can.lists or store.url.endswith(".zarr")
    return may_be_zarr and any(not isinstance(head, Exception) for head in store.head(foreign.ZARR, 1))


def _parse_frame(
    store: Store,
    name: str,
    owner: Owner,
    head: Head,
    version: Version | None,
    start: int = 0,
    end: Tail | None = None,
    *,
    bare: bool = False,
    with_contents: bool = False,
    cached: bool = False,
) -> Revision:
    """Parse the frame whose beginning is `head`, of the object `name`; read what is missing.

    `version` is the version of that object, and `end` the end of the file, if it was read. The other parameters are as
    for `read_frame`. FormatError or UnsupportedError: this is no frame, or not one of the expected kind.
    """
    data = head.data
    content = _content_in(store, version) if cached else None
    try:
        header_len = header_nbytes(data)
        if header_len > len(data):
            data = read_whole(store, Span(name, start, start + header_len), version, content)
        fields = unpack_header(data)
        if fields.frame_type != (FrameType.SPARSE if name else FrameType.CONTIGUOUS):
            raise wrong_kind(fields.frame_type)
        first, stop = fields.tail_start, fields.frame_len
        is_complete = stop <= len(data)
        if is_complete:
            tail = data[first:stop]
        elif end is not None and _has_tail(end, first, stop):
            tail = end.data[first - end.start : stop - end.start]
        else:
            span = Span(name, start + first, start + stop)
            tail = read_whole(store, span, version, content)
        described = frame.unpack(data, tail, fields, bare=bare)
    except (FormatError, UnsupportedError) as error:
        raise prefix_error(store.url, error) from error
    header = bytes(data[:header_len])
    if described.is_ours:
        generation = described.fingerprint.hex()
    else:
        generation = _name_foreign_state(header, tail, version)
    state = State(described, None) if bare else parse(described)
    ends: tuple[Tail, ...] = ()
    # The indexes of kept states are often in the bytes that were just read, which spares a wave of requests.
    if state.annotations.kept and not (name or store.can.local):
        ends = tuple(each for each in (Tail(data, start, version), end) if each is not None)
    is_small = not name and is_complete and stop <= _MOST_CONTENTS
    contents = bytes(data[:stop]) if with_contents and is_small else b""
    return Revision(
        store,
        state,
        start,
        version,
        generation,
        owner,
        head.unique,
        header,
        ends=ends,
        contents=contents,
        name=name,
    )


def _content_in(store: Store, version: Version | None) -> ContentName | None:
    """Return a name in the cache on disk for the bytes of an object in one state; None if nothing tells the states."""
    if version is None or not store.may_keep(version):
        return None
    return ContentName(repr(version).encode(), 0)


def _has_tail(end: Tail, first: int, stop: int) -> bool:
    """Whether the end of a file contains the tail of its frame."""
    size = end.start + len(end.data)
    # Without a version, only an equal size shows that the end is not of a later state.
    fits = stop <= size if end.version else stop == size
    return fits and end.start <= first


def wrong_kind(kind: FrameType) -> FormatError:
    """Return the error for a frame of this kind in the place of one of the other kind."""
    expected = FrameType(1 - kind)
    return FormatError(f"expected a {expected.name.lower()} frame, found a {kind.name.lower()} one")


def _name_foreign_state(header: bytes, tail: Buffer, version: Version | None) -> str:
    """Return a name for a state that other software wrote.

    The version is part of it, because other software rewrites chunks without a change of header, index or trailer.
    """
    digest = blake2b(header, digest_size=16)
    digest.update(tail)
    digest.update(str(version or "").encode())
    return digest.hexdigest()
