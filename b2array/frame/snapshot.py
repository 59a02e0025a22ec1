"""`Snapshot`: one committed state of a frame, an object that never changes; `load` reads it from a store.

A frame by itself has one index, which every commit replaces. A member of a group in an object store has a revision for
each commit of the group, and the group's manifest lists the one that counts: `load_member` reads that one. The index
under the usual name is a published copy, for readers that know nothing of the group. `load` finds out from a note in it
that there is a group.
"""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.buffers import Buffer
from b2array.codec.header import Special
from b2array.errors import (
    B2ArrayError,
    ConflictError,
    FormatError,
    SnapshotLostError,
    UnsupportedError,
    prefix_error,
    prefix_errors,
)
from b2array.format import foreign, frame, index
from b2array.format.frame import FINGERPRINT_NBYTES, Frame
from b2array.format.header import FrameType, header_nbytes, unpack_header
from b2array.format.kept import Kept, Ledger, ledger_of, object_name, unpack_state
from b2array.format.state import State, parse, with_index
from b2array.frame.catalog import Catalog
from b2array.frame.manifest import Manifest, Row, data_path, index_name
from b2array.frame.source import FRAME_NAME, CachedHead, Location, Source
from b2array.store.base import (
    Head,
    HiddenError,
    Store,
    Tail,
    Version,
    read_whole,
    says_more,
    stale_reader,
    where,
)
from b2array.store.spans import Span

__all__ = [
    "Member",
    "Snapshot",
    "find_damage",
    "find_frame",
    "head_if_unchanged",
    "ledger_in",
    "load",
    "load_from_header",
    "load_kept_state",
    "load_kept_states",
    "load_member",
    "load_published",
    "load_revision",
    "lost_snapshot",
    "reload",
    "unknown_name",
]

_FIRST_READ = 64 * 2**10
_LAST_READ = 64 * 2**10
_PICKLED_NBYTES = 2**16
"""A table of sizes that takes more than this, and serves writers only, stays out of pickles."""
_MANY_CHUNKS = 2**18
_FEW_SEARCHES = 8
"""In an index of so many chunks, the ends of so many chunks are looked for before the index is sorted."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """The group in an object store that commits for a frame, and what the group calls the frame."""

    catalog: Catalog
    name: str

    @property
    def group(self) -> Store:
        """Where the group is."""
        return self.catalog.group


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot(Source):
    """A frame as it was when it was read.

    It begins at `start` in its file. `version` is the store's version of the file, and `generation` changes with every
    commit. `unique` identifies the file; see `b2array.store.base.Head`. `header` has the stored bytes. A snapshot from
    a pickle lacks them, and perhaps the sizes of blocks. A state that was kept under a name is `at` an entry of the
    frame's ledger, and has no stored header. A state that a group has committed, and not carried out yet, is read
    `again` by the group's manifest: its store may have an earlier one. With ``carries_out`` it is carried out first. A
    `member` of a group in an object store has its index in the object `index`, if that is not the published one. If
    this state is published, `published` is the version of the published index, as far as it is known.
    """

    store: Store
    state: State
    start: int
    version: Version | None
    generation: str
    unique: str = ""
    header: bytes = b""
    at: Kept | None = None
    ends: tuple[Tail, ...] = ()
    again: Callable[..., Snapshot] | None = None
    member: Member | None = None
    index: str = ""
    published: Version | None = None
    buffer: ClassVar[None] = None
    frame: Frame = field(init=False)
    sparse: bool = field(init=False)
    is_local: bool = field(init=False)
    heads: MutableMapping[int, CachedHead] = field(init=False, default_factory=dict)
    cache_key: object | None = field(init=False)
    _expected: Version | None = field(init=False)
    _is_unchecked: bool = field(init=False)
    _ordered: npt.NDArray[np.int64] | None = field(init=False, default=None)
    _searches: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        described = self.state.frame
        is_ours = described.is_ours
        expected = None if described.frame_type == FrameType.SPARSE else self.version
        if expected is not None and self.store.can.local and is_ours and not self._is_packed_elsewhere():
            expected = Version(expected.tag, expected.state, *self._last_bytes())
        object.__setattr__(self, "frame", described)
        object.__setattr__(self, "sparse", described.frame_type == FrameType.SPARSE)
        object.__setattr__(self, "is_local", self.store.can.local)
        object.__setattr__(self, "_expected", expected)
        # Other software writes no checksums, and changes chunks in their places.
        unchecked = self.is_local and not self.store.in_process and self.version is not None and not is_ours
        object.__setattr__(self, "_is_unchecked", unchecked)
        object.__setattr__(self, "cache_key", self._new_cache_key(is_ours=is_ours))

    @property
    def name(self) -> str:
        """The object that holds header, index and trailer."""
        return self.index or (FRAME_NAME if self.sparse else "")

    def _is_packed_elsewhere(self) -> bool:
        """Whether the frame has no bytes that tell of this state; `version` then has known ones of a later state."""
        return self.at is not None and bool(self.at.packed)

    @property
    def expected_version(self) -> Version | None:
        """The version of the file that reading requires."""
        return self._expected

    def _last_bytes(self) -> tuple[bytes, int]:
        """Return the last bytes of this state, which no other file has there, and where they end."""
        described, at = self.state.frame, self.at
        if at is None:
            return described.fingerprint, self.start + described.frame_len
        return at.digest, self.start + described.header_len + at.place + at.nbytes

    def _new_cache_key(self, *, is_ours: bool) -> object | None:
        """Return the key of this frame's blocks in the cache; None if they must not be cached.

        Two snapshots have equal keys only if their blocks are equal. A key is made of the place and state of the file
        (what `unique` says: the store, the object, its version), the frame's start in it, and the generation. Each part
        is needed. Files can be copies of each other, fingerprint and all. A file can hold many frames. Other software
        rewrites chunks and leaves header, index and trailer as they are.

        Where that does not tell all states apart, only this snapshot has the key, so that refreshing or opening again
        starts afresh. This is so for directories, whose chunks have versions of their own; for local files that were
        changed a moment ago; for states that this process committed or unpickled; and for frames by b2array in places
        without versions, such as HTTP. Frames by other software in such places are not cached at all.
        """
        if not is_ours and not self.version:
            return None
        if self.sparse or not self.unique:
            return object()
        return blake2b(repr((self.unique, self.start, self.generation)).encode(), digest_size=16).digest()

    def staleness(self) -> ConflictError | None:
        """Return the error that says why the store does not hold this state any more; None if it does."""
        try:
            current = reload(self)
        except FileNotFoundError:
            return ConflictError(f"{self.url} was deleted or moved since it was opened")
        except ConflictError as error:
            return error
        except FormatError:
            # A disk may have damaged a local file; elsewhere, somebody has put something else in its place.
            return stale_reader(self.url) if not self.store.can.local and self._is_replaced() else None
        except (OSError, B2ArrayError):
            return None
        if self.at is not None and current.at is not None and current.at.suspect:
            return lost_snapshot(self.url, self.at.title)
        same = (current.generation, current.at) == (self.generation, self.at)
        return None if same else stale_reader(self.url)

    def _is_replaced(self) -> bool:
        """Whether the store is known to hold another header, or nothing that can be read."""
        if not self.header:
            return False
        try:
            return head_if_unchanged(self.store, self.frame, self.header, self.start) is None
        except (OSError, B2ArrayError):
            return True

    def has_same_chunks(self, other: Snapshot) -> bool:
        """Whether a chunk's number means the same in another state: metalayers and sizes are equal."""
        a, b = self.frame, other.frame
        return (a.metalayers, a.nbytes, a.chunksize) == (b.metalayers, b.nbytes, b.chunksize)

    def locate(self, n: int) -> Location | Special:
        """Return where chunk `n` is; ChunkLostError if it is lost. In a contiguous frame it may end before `stop`."""
        entry = self.entry(n)
        return entry if isinstance(entry, Special) else self.location_of(entry)

    def locate_unchecked(self, n: int) -> Location | Special:
        """Do the same without looking whether the chunk is lost, which would unpack the annotations."""
        offsets = self.frame.offsets
        entry = int(offsets[n]) if 0 <= n < len(offsets) else -1
        return self.locate(n) if entry < 0 else self.location_of(entry)

    def location_of(self, entry: int) -> Location:
        """Return where a stored chunk is, given its entry in the index."""
        described = self.frame
        if described.frame_type == FrameType.SPARSE:
            return Location(index.chunk_name(entry), 0, -1)
        base, after = self.start + described.header_len, self._next_entry(entry)
        return Location("", base + entry, base + (described.cbytes if after is None else after))

    def _next_entry(self, entry: int) -> int | None:
        """Return the least entry of the index that is larger, or None."""
        offsets, ordered = self.frame.offsets, self._ordered
        if ordered is None and len(offsets) >= _MANY_CHUNKS and self._searches < _FEW_SEARCHES:
            # An ordered copy of a long index takes more memory and time than a few looks at all of it.
            object.__setattr__(self, "_searches", self._searches + 1)
            return index.least_after(offsets, entry)
        if ordered is None:
            ordered = offsets[offsets >= 0]
            ordered.sort()
            object.__setattr__(self, "_ordered", ordered)
        after = bisect_right(ordered, entry)
        return int(ordered[after]) if after < len(ordered) else None

    def read(self, spans: Sequence[Span], *, clip: bool = False) -> list[memoryview]:
        """Read bytes of the store's objects; `clip`: fewer where an object ends before."""
        views = self.store.read(spans, expected=self._expected, clip=clip)
        if self._is_unchecked:
            self._require_unchanged()
        return views

    def gather(self, spans: Sequence[Span], places: Sequence[int], nbytes: int) -> memoryview:
        """Read bytes to their places in one buffer; the memory is used again when nothing refers to it."""
        view = self.store.gather(spans, places, nbytes, expected=self._expected)
        if self._is_unchecked:
            self._require_unchanged()
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
            self.at,
            self.again,
            self.member,
            self.index,
        )

    def _require_unchanged(self) -> None:
        """Raise ConflictError if a frame without checksums was changed before its chunks were read."""
        try:
            found = self.store.stamp_read(self.name).version
        except FileNotFoundError:
            raise ConflictError(f"{self.url} was deleted or moved since it was opened") from None
        if found != self.version:
            raise stale_reader(self.url)


def _unpickle(
    store: Store,
    thin: Frame,
    index: bytes,
    start: int,
    version: Version | None,
    generation: str,
    at: Kept | None,
    again: Callable[..., Snapshot] | None,
    member: Member | None,
    name: str,
) -> Snapshot:
    state = with_index(thin, index)
    return Snapshot(store, state, start, version, generation, at=at, again=again, member=member, index=name)


def load(store: Store, *, start: int = 0, bare: bool = False) -> Snapshot:
    """Read the current frame of a store, or the state that a group in an object store lists.

    A `bare` snapshot has no index and no layout: for callers that only open kept states of it.

    One wave of requests finds out whether the store is one file or a directory, and reads the first 64 KiB and, where
    servers can be asked for it, the last 64 KiB of the file. More follow if index and trailer are not in these, if
    another writer came between these requests, or if the frame notes that it is in a group.

    Raises
    ------
    FileNotFoundError
        There is no frame, or the group does not list it any more.
    """
    return _follow_group(load_published(store, start=start, bare=bare), bare=bare)


def load_published(store: Store, *, start: int = 0, bare: bool = False, sparse: bool | None = None) -> Snapshot:
    """Read the frame that is in a store, whatever a group says of it. Raises what `load` raises.

    A caller that knows whether the frame is `sparse` spares requests.
    """
    start = operator.index(start)
    if start < 0:
        raise ValueError(f"the offset of a frame in its file must be at least 0, not {start}")
    for _ in range(config.retries):
        with suppress(ConflictError):  # another writer came between the two waves
            return _load(store, start, bare=bare, sparse=sparse)
    return _load(store, start, bare=bare, sparse=sparse)


# Members of groups in object stores.


def _follow_group(held: Snapshot, *, bare: bool) -> Snapshot:
    """Return the state that the group of a frame lists; the same state for a frame that is in no such group."""
    noted = held.state.annotations.group_commit
    if noted is None or held.start or held.store.can.local:
        return held
    store_of = held.store.around(noted.path)
    if store_of is None:  # a copy, at another path
        return held
    catalog = Catalog(store_of(""))
    try:
        manifest, _ = catalog.read()
    except PermissionError:  # without permission to list, this is also the answer for a missing object
        return held
    if manifest.identity != noted.identity or manifest.rows is None:
        return held
    member = Member(catalog, noted.path.rpartition(".")[0])
    row = manifest.rows.get(member.name)
    if row is None or row.path != noted.path:
        raise FileNotFoundError(f"{held.url} was deleted")
    if row.revision in ("", held.generation):
        return replace(held, member=member, published=held.version)
    try:
        return load_revision(member, row, bare=bare)
    except (FileNotFoundError, NotADirectoryError):
        raise FormatError(f"{held.url}: expected revision {row.revision}, which the group lists, found none") from None


def load_member(
    member: Member, manifest: Manifest, *, known: Snapshot | None = None, for_writing: bool = False
) -> Snapshot:
    """Return the state of a member that a manifest lists, which may be the `known` one.

    `for_writing` reads the published index, if that is the listed state: then the next commit knows its version.

    Raises
    ------
    FileNotFoundError
        The manifest does not list the member, or `vacuum` has removed the revision after a later commit.
    """
    row = (manifest.rows or {}).get(member.name)
    if row is None:
        raise FileNotFoundError(f"{where(member.catalog.url, member.name)} was deleted")
    if known is not None and row.revision and row.revision == known.generation:
        return known
    store = member.group.below(row.path)
    if row.revision and not (for_writing and row.sparse):
        try:
            return load_revision(member, row)
        except (FileNotFoundError, FormatError):
            copy = _published_copy(member, row)
            if copy is None:
                raise
            return copy
    try:
        # If only its files told of the member, it may be another kind.
        published = load_published(store, sparse=row.sparse if row.revision else None)
    except (FileNotFoundError, NotADirectoryError):
        if not row.revision:
            raise
        return load_revision(member, row)
    if row.revision not in ("", published.generation):
        return load_revision(member, row)
    listed = None if row.revision else _listed_inside(published, row)
    return listed or replace(published, member=member, published=published.version)


def _listed_inside(published: Snapshot, row: Row) -> Snapshot | None:
    """Return the state that a group inside the group of a row lists; None for a member of the group itself."""
    noted = published.state.annotations.group_commit
    if noted is None or noted.path == row.path:
        return None
    listed = _follow_group(published, bare=False)
    return None if listed.member is None else listed


def _published_copy(member: Member, row: Row) -> Snapshot | None:
    """Return what is published of a revision whose index is damaged or missing; None if that is another state."""
    try:
        published = load_published(member.group.below(row.path), sparse=row.sparse)
    except (OSError, B2ArrayError):
        return None
    if published.generation != row.revision:
        return None
    return replace(published, member=member, published=published.version)


def find_damage(held: Snapshot) -> tuple[str, str] | None:
    """Return the object with the index that a group lists, and what is wrong with it, if a published copy stands in."""
    if held.member is None or held.index or not held.generation:
        return None
    manifest, _ = held.member.catalog.read()
    row = (manifest.rows or {}).get(held.member.name)
    if row is None or row.revision != held.generation:
        return None
    name = index_name(row.revision) if row.sparse else data_path(row.revision)
    place = where(held.url if row.sparse else held.member.group.url, name)
    try:
        load_revision(held.member, row)
    except FileNotFoundError:
        return name, f"{place}: expected the index that the group lists, found none"
    except (FormatError, UnsupportedError) as error:
        return name, f"{place}: the index that the group lists cannot be read: {error}"
    return None


def load_revision(member: Member, row: Row, *, bare: bool = False) -> Snapshot:
    """Return the state of a revision of a member. Raises what `load_member` raises."""
    if row.sparse:
        store, name = member.group.below(row.path), index_name(row.revision)
    else:
        store, name = member.group.below(data_path(row.revision), shown_as=row.path), ""
    (head,) = store.head([name], _FIRST_READ)
    if isinstance(head, Exception):
        raise head
    revision = _parse(store, name, 0, head.data, head.version, head.unique, bare=bare)
    if revision.generation != row.revision:
        raise FormatError(f"{where(store.url, name)}: expected revision {row.revision}, found {revision.generation}")
    return replace(revision, member=member, index=name)


def _load(store: Store, start: int, *, bare: bool, in_one_wave: bool = True, sparse: bool | None = None) -> Snapshot:
    names = (FRAME_NAME,) if store.is_prefix else ("",) if start else ("", FRAME_NAME)
    if sparse is not None:
        names = (FRAME_NAME,) if sparse else ("",)
    if start or store.is_prefix or not in_one_wave or sparse:
        heads, tail = store.head(names, _FIRST_READ, offset=start), None
    else:
        heads, tail = store.ends(names, _FIRST_READ, _LAST_READ)
    found = [(name, head) for name, head in zip(names, heads, strict=True) if not isinstance(head, Exception)]
    if not found:
        if isinstance(heads[0], IsADirectoryError) and isinstance(heads[-1], NotADirectoryError):
            raise stale_reader(store.url)  # another writer has replaced the directory by a file in between
        raise _refusal(store, heads)
    # On object stores an empty object may stand for the directory.
    name, head = found[-1] if not found[0][1].data else found[0]
    version = head.version
    if tail is None or name or tail.version != version:
        return _parse(store, name, start, head.data, version, head.unique, bare=bare)
    try:
        return _parse(store, name, start, head.data, version, head.unique, tail, bare=bare)
    except FormatError:
        if version:
            raise
        # Nothing but this tells that beginning and end are of different states.
        return _load(store, start, bare=bare, in_one_wave=False)


def find_frame(store: Store) -> Snapshot | None:
    """Return the frame that a new one is to replace, if there is one that can be read."""
    for read in (load, load_published):  # a group may list another revision, or not list it any more
        with suppress(FileNotFoundError, FormatError, UnsupportedError):
            return read(store)
    return None


def reload(held: Snapshot, *, even_new: bool = False, carries_out: bool = False) -> Snapshot:
    """Return the state that the store of a snapshot holds now: with the same parsed frame if nothing was committed.

    Header and fingerprint are compared, which tell every state that b2array has written from all others. Raises what
    `load` raises, and ConflictError if the frame was deleted and another one made in its place, unless `even_new`. A
    writer `carries_out` what a group has committed before: nobody may write to a frame that waits in another place.
    """
    if held.member is not None:
        return _reload_member(held, held.member, even_new=even_new)
    if held.at is not None and held.at.group:
        if held.again is not None:
            return held.again()  # the group knows where the state is now
        if held.at.packed:
            return held
    if held.header and held.frame.is_ours and held.again is None:
        head = head_if_unchanged(held.store, held.frame, held.header, held.start, held.index)
        if head is not None:
            return replace(held, version=head.version, unique=head.unique)
    if held.again is None:
        current = load(held.store, start=held.start, bare=held.at is not None)
    else:
        current = held.again(carries_out=carries_out)
    return _require_same_frame(held, current, even_new=even_new)


def _reload_member(held: Snapshot, member: Member, *, even_new: bool) -> Snapshot:
    manifest, _ = member.catalog.read()
    if manifest.rows is None:  # no commit of the group has written its manifest yet
        current = load_published(held.store)
        return _require_same_frame(held, replace(current, member=member, published=current.version), even_new=even_new)
    row = manifest.rows.get(member.name)
    if held.at is None and row is not None and row.revision == held.generation:
        return held
    return _require_same_frame(held, load_member(member, manifest), even_new=even_new)


def _require_same_frame(held: Snapshot, current: Snapshot, *, even_new: bool) -> Snapshot:
    """Return the current state, or the state of a snapshot; ConflictError if another frame took the place."""
    if held.at is not None:
        return load_kept_state(current, held.at.name, held.at.generation)
    if current.state.annotations.identity != held.state.annotations.identity and not even_new:
        raise ConflictError(
            f"{held.url} was deleted and made again since it was opened; open it again, or call refresh()"
        )
    return current


def ledger_in(held: Snapshot) -> Ledger:
    """Return the ledger of a frame; FormatError or UnsupportedError, with the frame's URL, if it cannot be read."""
    return prefix_errors(held.url, lambda: ledger_of(held.state))


def load_kept_state(held: Snapshot, name: str, generation: bytes | None = None) -> Snapshot:
    """Return a state that the frame of a snapshot keeps under a name.

    KeyError if no snapshot has this name. ConflictError if the state of this `generation` is gone. FormatError if its
    index is damaged. SnapshotLostError if other software has overwritten it.
    """
    ledger = ledger_in(held)
    entry = ledger.find(name)
    if generation is not None and (entry is None or entry.generation != generation):
        raise ConflictError(f"{held.url}: the snapshot {name!r} was dropped since it was opened")
    if entry is None:
        raise unknown_name(held.url, name, ledger.names)
    return load_kept_states(held, [entry])[0]


def unknown_name(url: str, name: str, names: Iterable[str]) -> KeyError:
    """Return the error for a missing snapshot, given the names of the existing ones."""
    return KeyError(f"{url} has no snapshot {name!r}; it has {', '.join(map(repr, names)) or 'none'}")


def lost_snapshot(url: str, title: str) -> SnapshotLostError:
    """Return the error of a snapshot whose data other software has overwritten."""
    return SnapshotLostError(
        f"{url}: other software has changed the frame since the snapshot {title} was made, and took data of it"
    )


def load_kept_states(held: Snapshot, entries: Sequence[Kept]) -> list[Snapshot]:
    """Return states that the frame of a snapshot keeps, with one wave of requests.

    States of a frame that other software has changed since are `suspect`. FormatError if one is damaged. ConflictError
    if it seems so, but the frame has changed since it was read. SnapshotLostError if other software has overwritten it.
    """
    if not held.frame.is_ours:
        entries = [replace(entry, suspect=True) for entry in entries]
    spans, known = {}, {}
    for entry in entries:
        base = 0 if held.sparse else held.start + held.frame.header_len + entry.place
        span = Span(object_name(entry.place) if held.sparse else "", base, base + entry.nbytes)
        views = [end.data[span.start - end.start :] for end in held.ends if end.start <= span.start]
        view = entry.packed or next((view[: entry.nbytes] for view in views if len(view) >= entry.nbytes), None)
        if view is None:
            spans[entry] = span
        else:
            known[entry] = view
    try:
        known.update(zip(spans, held.read([*spans.values()]) if spans else (), strict=True))
    except (FileNotFoundError, FormatError) as error:
        if len(entries) > 1:  # to name the one that is lost
            return [found for entry in entries for found in load_kept_states(held, [entry])]
        (entry,) = entries
        stale = held.staleness()
        if stale is not None:  # the frame was deleted, or the state was dropped, since the frame was read
            raise stale from None
        if entry.suspect:
            raise lost_snapshot(held.url, entry.title) from error
        raise FormatError(
            f"{held.url}: snapshot {entry.name!r}: expected its index of {entry.nbytes} bytes, found none"
        ) from error
    found = []
    for entry in entries:
        try:
            state = unpack_state(known[entry], entry)
        except (FormatError, UnsupportedError) as error:
            if entry.suspect:
                raise lost_snapshot(held.url, entry.title) from error
            raise prefix_error(f"{held.url}: snapshot {entry.name!r}", error) from error
        if state.frame.frame_type != held.frame.frame_type:
            raise prefix_error(f"{held.url}: snapshot {entry.name!r}", _wrong_kind(state.frame.frame_type))
        found.append(
            Snapshot(
                held.store,
                state,
                held.start,
                held.version,
                entry.generation.hex(),
                held.unique,
                at=entry,
                again=held.again,
                member=held.member,
                index=held.index,
            )
        )
    return found


def head_if_unchanged(store: Store, described: Frame, header: bytes, start: int = 0, index: str = "") -> Head | None:
    """Return the beginning of a frame by b2array if the store still holds this state of it, else None."""
    stop, name = described.frame_len, index or (FRAME_NAME if described.frame_type == FrameType.SPARSE else "")
    wanted = stop if stop <= _FIRST_READ else len(header)
    (head,) = store.head([name], wanted, offset=start)
    if isinstance(head, Exception) or head.data[: len(header)] != header:
        return None
    tail = head.data[stop - FINGERPRINT_NBYTES :]
    if wanted < stop:
        (tail,) = store.read([Span(name, start + stop - FINGERPRINT_NBYTES, start + stop)], clip=True)
    return head if tail == described.fingerprint else None


def load_from_header(store: Store, data: Buffer, version: Version | None, unique: str = "") -> Snapshot:
    """Read a frame. `data` has at least its header, and the store the rest. Raises what `load` raises."""
    try:
        sparse = unpack_header(data).frame_type == FrameType.SPARSE
    except (FormatError, UnsupportedError) as error:
        raise prefix_error(store.url, error) from error
    return _parse(store, FRAME_NAME * sparse, 0, memoryview(data), version, unique)


def _refusal(store: Store, errors: Sequence[object]) -> Exception:
    absent = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
    for error in errors:
        if isinstance(error, HiddenError):
            return error
        if isinstance(error, Exception) and (says_more(error) or not isinstance(error, absent)):
            return error
    # An HTTP server is asked only where its URL says so: each of its answers may take a second.
    may_be_zarr = store.can.lists or store.url.endswith(".zarr")
    if may_be_zarr and any(not isinstance(head, Exception) for head in store.head(foreign.ZARR, 1)):
        return FileNotFoundError(foreign.zarr_text(store.url))
    if any(isinstance(error, IsADirectoryError) for error in errors):
        return FileNotFoundError(f"{store.url} is a directory without {FRAME_NAME}: no sparse frame")
    if store.is_prefix:
        return FileNotFoundError(f"{where(store.url, FRAME_NAME)} does not exist: no sparse frame")
    return FileNotFoundError(f"{store.url} does not exist")


def _parse(
    store: Store,
    name: str,
    start: int,
    data: memoryview,
    version: Version | None,
    unique: str = "",
    end: Tail | None = None,
    *,
    bare: bool = False,
) -> Snapshot:
    try:
        header_len = header_nbytes(data)
        if header_len > len(data):
            data = read_whole(store, Span(name, start, start + header_len), version)
        head = unpack_header(data)
        if head.frame_type != (FrameType.SPARSE if name else FrameType.CONTIGUOUS):
            raise _wrong_kind(head.frame_type)
        first, stop = head.tail_start, head.frame_len
        if stop <= len(data):
            tail = data[first:stop]
        elif end is not None and _has_tail(end, first, stop):
            tail = end.data[first - end.start : stop - end.start]
        else:
            tail = read_whole(store, Span(name, start + first, start + stop), version)
        found = frame.unpack(data, tail, head, bare=bare)
    except (FormatError, UnsupportedError) as error:
        raise prefix_error(store.url, error) from error
    header = bytes(data[:header_len])
    generation = found.fingerprint.hex() if found.is_ours else _digest(header, tail, version)
    state = State(found, None) if bare else parse(found)
    ends: tuple[Tail, ...] = ()
    if state.annotations.kept and not (name or store.can.local):
        ends = tuple(each for each in (Tail(data, start, version), end) if each is not None)
    return Snapshot(store, state, start, version, generation, unique, header, ends=ends)


def _has_tail(end: Tail, first: int, stop: int) -> bool:
    """Whether the end of a file has the tail of its frame. Without a version, sizes must agree, too."""
    size = end.start + len(end.data)
    return end.start <= first and (stop <= size if end.version else stop == size)


def _wrong_kind(found: FrameType) -> FormatError:
    expected = FrameType(1 - found)
    return FormatError(f"expected a {expected.name.lower()} frame, found a {found.name.lower()} one")


def _digest(header: bytes, tail: Buffer, version: Version | None) -> str:
    """Name a state that other software wrote: it may write chunks again without changing a byte of the frame."""
    digest = blake2b(header, digest_size=16)
    digest.update(tail)
    digest.update(str(version or "").encode())
    return digest.hexdigest()
