"""`Transaction`: changes that take effect all at once, on top of what other writers committed meanwhile.

Until the commit no reader sees any of them. The commit swaps the index. A sparse frame gets a new file with it. A
contiguous one gets it appended, and then one small write changes the header to point to it; a file that cannot be
extended, is mostly dead space, or gets only new chunks is written again.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from b2array.buffers import Buffer
from b2array.codec.cparams import AUTO
from b2array.codec.header import FilterId
from b2array.engine.fetch import chunk_number, each_chunk
from b2array.engine.overlay import Overlay, changeable
from b2array.engine.redo import writers_lock
from b2array.engine.snapshot import Snapshot, load, reload
from b2array.engine.source import FRAME_NAME, Location, Source
from b2array.engine.staging import LOWEST_CODE
from b2array.errors import B2ArrayError, ConflictError, FormatError, warn
from b2array.format import fingerprint, frame, index
from b2array.format.annotations import CHAIN, LAYER, Annotations, merged, pack_records, packed_sizes
from b2array.format.checksums import record_nbytes
from b2array.format.frame import Frame
from b2array.format.header import FrameType
from b2array.format.state import State, changed_chunks, layers_with, parse
from b2array.progress import Progress
from b2array.store.base import Store, attempts, durability, identity, may_still_happen, too_many_conflicts

__all__ = ["Prepared", "Transaction", "copied", "discard", "is_part", "take_place"]

T = TypeVar("T")

_ATOMIC_HEADER = 512
"""A header is rewritten in place only if it changes only within its first bytes, as many as a disk's sector has."""
_DEAD_LIMIT = 2**16
"""With less dead space than this, a commit never writes a whole contiguous frame again."""


class Prepared(NamedTuple):
    """The next state, and the bytes of its header and tail."""

    header: bytes
    tail: bytes
    state: State


class Transaction(Overlay):
    """Changes on top of a snapshot, or of nothing for a new frame, until they are committed.

    Threads may put chunks at the same time; everything else is for one thread at a time. If `locked`, the caller holds
    the store's lock. `replaces` is the version of the frame that a new one replaces: no other version is overwritten.
    """

    def __init__(
        self, store: Store, base: Snapshot | None, new: State | None = None, *,
        overwrite: bool = False, locked: bool = False, replaces: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(store, base, new, overwrite=overwrite)
        self._overwrite = overwrite
        self._locked = locked
        self._replaces = replaces
        self._compacting = False
        self._progress: Progress | None = None
        self._undecided = False

    def compact(self, progress: Progress | None = None) -> None:
        """Let the commit write the whole frame again, without dead space; `progress` counts the chunks."""
        self._compacting, self._progress = True, progress

    @property
    def changed(self) -> bool:
        """Whether there is anything to commit."""
        edited = self._touched or self._open or self._attrs or self.restructured or self._compacting
        return self.base is None or bool(edited) or self.state.annotations != self.base.state.annotations

    @property
    def _open(self) -> set[int]:
        return set() if self.buffer is None else set(self.buffer.chunks)

    def commit(self) -> Snapshot:
        """Make the changes visible, all at once, and return the new state.

        ConflictError: another writer has changed what these changes build on, and the store is as that writer left it.
        """
        try:
            self.flush()
            snapshot = self.base
            if snapshot is None or self.changed:
                self._staging.require_open()
                snapshot = self._publish_new() if snapshot is None else self._on_newest(self._publish, self._lock)
        except BaseException:
            self.abort()
            raise
        self.published(snapshot.frame)
        return snapshot

    def abort(self) -> None:
        """Forget the changes, as long as no index refers to them."""
        self._staging.close()
        if self.aside and self._staging.ours:
            discard(self.store)
            return
        with suppress(OSError, B2ArrayError):
            if not self._staging.noted or not self.sparse or not self._staging.ours or self._undecided:
                return
            with self._lock() if self.base is not None else nullcontext():
                try:
                    offsets = load(self.store).frame.offsets
                except FileNotFoundError:
                    offsets = self.state.frame.offsets[:0]
                self.store.withdraw(self._staging.unused(offsets))

    def prepare(
        self, entry: tuple[str, object] | None, put: Callable[[Iterable[Buffer]], object]
    ) -> tuple[Frame, bytes]:
        """Write everything but the final step that publishes it, for a commit of several frames.

        The caller holds the lock. Return the new frame, and the bytes that publish it when the caller writes them over
        the beginning of the object. They are empty if a new object replaces the old one: then `put` got its pieces.
        `entry` goes among the annotations.
        """
        self.flush()
        if self.base is None:
            if entry is not None:
                self.annotate_entry(*entry)
            made = self._prepared(0)
            put(self._pieces(made))
            return made.state.frame, b""

        def write(current: Snapshot) -> tuple[Frame, bytes]:
            if entry is not None:
                self.annotate_entry(*entry)
            if self.sparse:
                made = self._prepared(0)
                put(self._pieces(made))
                return made.state.frame, b""
            made = self._prepared(current.frame.frame_len - current.frame.header_len)
            if not self._fits(current, made):
                with self._whole() as new:
                    made = new._prepared(0)
                    put(new._pieces(made))
                return made.state.frame, b""
            self._append(current, made)
            return made.state.frame, made.header

        return self._on_newest(write, nullcontext)

    def published(self, described: Frame) -> None:
        """Clean up after a commit, or after what `prepare` returned was published."""
        self._staging.close()
        with suppress(OSError, B2ArrayError):  # what stays behind disturbs no reader
            self.store.withdraw(self._staging.unused(described.offsets))

    # On top of what other writers committed.

    def _lock(self) -> AbstractContextManager[object]:
        return nullcontext() if self._locked else writers_lock(self.store, self.name)

    def _on_newest(self, function: Callable[[Snapshot], T], lock: Callable[[], AbstractContextManager[object]]) -> T:
        """Put the changes on top of the newest state and call `function` with it; again if others were first."""
        for _ in attempts(self.store):
            with lock():
                current = load(self.store) if self.base is None else reload(self.base)
                if self.base is not None and current.generation != self.base.generation:
                    self._rebase(self.base, current)
                try:
                    return function(current)
                except ConflictError:  # a store without locks compares while it writes
                    if reload(current).generation == current.generation:
                        raise
        raise too_many_conflicts(self.store)

    def catch_up(self) -> bool:
        """Go on from the state of another writer whose commit removed the bytes of the base; say whether one did."""
        if self.base is None or self.sparse or self.store.appendable or self.undo is not None:
            return False
        current = reload(self.base)
        if current.generation == self.base.generation:
            return False
        self._rebase(self.base, current)
        return True

    def _rebase(self, base: Snapshot, current: Snapshot) -> None:
        """Put the changes on top of what another writer committed, if they do not touch the same things."""
        if current.sparse != self.sparse:
            raise ConflictError(f"{self.url}: another writer replaced the frame by one of the other layout")
        if self._touched or self._read or self._open or self.restructured or self._compacting:
            self._check_mergeable(base, current)
        conflicts = [name for name in self._attrs if base.state.attr(name) != current.state.attr(name)]
        if conflicts:
            raise ConflictError(f"{self.url}: attributes {conflicts} were changed by another writer as well")
        ours, touched = self.state, sorted(self._touched)
        annotations = merged(base.state.annotations, ours.annotations, current.state.annotations)
        self.base, self.state = current, changeable(current.state).with_annotations(annotations)
        self.state.frame.offsets[touched] = ours.frame.offsets[touched]
        self.state.sizes[touched] = ours.sizes[touched]
        self.state.records[touched] = ours.records[touched]
        for name, content in self._attrs.items():
            self.state = self.state.with_attr(name, content)
        self.reserve_up_to((current.state.annotations.next or 0) - 1)

    def _check_mergeable(self, base: Snapshot, current: Snapshot) -> None:
        # Other software rewrites chunks in their places, and a file that is written again moves its chunks.
        moved = not self.sparse and identity(base.version or "") != identity(current.version or "")
        comparable = current.alike(base) and current.frame.is_ours
        changed = changed_chunks(base.state, current.state, moved=moved) if comparable else None
        if self.restructured or self._compacting or changed is None:
            raise ConflictError(f"{self.url} was changed by another writer; call refresh() and repeat the change")
        conflicts = sorted(changed & (self._touched | self._read | self._open))
        if conflicts:
            raise ConflictError(f"{self.url}: chunks {conflicts} were changed by another writer as well")

    # The commit.

    def _publish_new(self) -> Snapshot:
        """Write the first state of a new frame, which may replace an old frame."""
        # A writer of the frame that goes must not come in between: it would write into the new one.
        name = self.name if self._old is None else self._old.name
        locks = self._overwrite and not self._locked and self._occupied(name)
        with self._final.lock(name) if locks else nullcontext():
            made = self._prepared(0)
            new = self._swap(made, lambda: self._file(made, self._replaces, exclusive=not self._overwrite))
            return take_place(self._final, new, self._old)

    def _occupied(self, name: str) -> bool:
        try:
            return self._final.guarantee == "lock" and self._final.stamp(name).size > 0
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _file(self, made: Prepared, expected: str | None, *, exclusive: bool = False) -> str:
        """Write a file with the whole frame: that in which the new chunks wait, if they do. Return its version."""
        path = self._staging.finish(made.header, made.tail, durable=durability() != "off")
        if path is not None:
            return self.store.adopt(path, "", exclusive=exclusive, expected=expected).version
        if exclusive:
            return self.store.create(self.name, self._pieces(made)).version
        return self.store.replace(self.name, self._pieces(made), expected=expected).version

    def _publish(self, current: Snapshot) -> Snapshot:
        """Write the next state of a frame: swap the index, append to the file, or write the file again."""
        if self.sparse:
            made = self._prepared(0)
            return self._swap(made, lambda: self._file(made, current.version))
        if not self.store.appendable:
            warn(f"{self.url}: one file in this store is rewritten with every change")
            return self._rewrite(current)
        # If all chunks are new, write them once, and not a second time behind the old ones.
        all_new = len(self._touched) == self.state.frame.nchunks and not self.restructured
        whole = all_new and self._staging.is_complete(len(current.header))
        made = self._prepared(0 if whole else current.frame.frame_len - current.frame.header_len)
        if not whole and (self._compacting or not self._fits(current, made)):
            return self._rewrite(current)
        if _is_mostly_dead(made.state):
            with suppress(FormatError):  # a chunk that cannot be read is no reason to refuse others
                return self._rewrite(current)
        if whole:
            return self._swap(made, lambda: self._file(made, current.version))

        def extend() -> str:
            self._append(current, made)
            try:
                return self.store.patch("", 0, made.header).version
            except BaseException:
                with suppress(OSError):  # half a header must not stay
                    self.store.patch("", 0, current.header)
                    self.store.append("", current.frame.frame_len, ())
                raise

        return self._swap(made, extend)

    def _append(self, current: Snapshot, made: Prepared) -> None:
        end = current.frame.frame_len
        new = self._staging.pieces(self.state.frame.offsets, end - current.frame.header_len)
        self.store.append("", end, chain(new, (made.tail,)))

    def _fits(self, current: Snapshot, made: Prepared) -> bool:
        """Whether the frame can be appended to the old one and then be pointed to in one small write."""
        old = current.header
        appendable = self.store.appendable and made.state.frame.nchunks
        return (
            bool(appendable) and len(old) == len(made.header) and made.header[_ATOMIC_HEADER:] == old[_ATOMIC_HEADER:]
        )

    def _rewrite(self, current: Snapshot) -> Snapshot:
        """Replace the old file by one with every chunk, and without dead space."""
        with self._whole(self._progress) as new:
            made = new._prepared(0)
            return self._swap(made, lambda: new._file(made, current.version))

    @contextmanager
    def _whole(self, progress: Progress | None = None) -> Iterator[Transaction]:
        """Give a transaction of a new file with every chunk; copying a chunk does not count as reading it."""
        source = copy.copy(self)
        source._read = set()
        new = copied(source, self.store, FrameType.CONTIGUOUS, progress=progress)
        new.annotate(identity=self.state.annotations.identity)  # another file, but the same frame
        try:
            yield new
        finally:
            new.abort()

    def _pieces(self, made: Prepared) -> Iterator[Buffer]:
        return chain((made.header,), self._staging.pieces(self.state.frame.offsets), (made.tail,))

    def _swap(self, made: Prepared, write: Callable[[], str]) -> Snapshot:
        """Publish the new frame. Ignore an error if the frame is there all the same, as when an answer was lost."""
        gone = self._staging.missing(self.state.frame.offsets)
        if gone:
            raise ConflictError(f"{self.url}: somebody removed {', '.join(gone)} before the commit that needs them")
        generation = made.state.frame.fingerprint.hex()
        if self.sparse:
            self.store.force()
        try:
            version = write()
        except BaseException as error:
            self._undecided |= may_still_happen(self.store, error)
            if not isinstance(error, Exception):
                raise
            exclusive = isinstance(error, FileExistsError) and self.store.guarantee == "lock"
            if exclusive or (durability() == "full" and self.store.appendable):
                raise
            with suppress(OSError, B2ArrayError):
                found = load(self.store)
                if found.generation == generation or found.state.annotations.lists(made.state.annotations):
                    return found
            raise
        return Snapshot(self.store, made.state, 0, version, generation, header=made.header)

    def _prepared(self, data_start: int) -> Prepared:
        """Make the next state, whose new chunks lie from `data_start` on, in bytes from the end of the header."""
        state = self.state
        offsets, cbytes = self._staging.placed(state.frame.offsets, data_start)
        if self.sparse:
            cbytes = index.sparse_cbytes(self._stored_nbytes(offsets), offsets)
        described = replace(
            self._with_filters(state), offsets=offsets, cbytes=cbytes, frame_len=0,
            nthreads_decompress=fingerprint.MARK,
            vlmetalayers=(*(layer for layer in state.frame.vlmetalayers if layer[0] != LAYER), (LAYER, b"")),
        )  # fmt: skip
        header = frame.pack_header(described)
        entries = {
            CHAIN: self._chain(),
            fingerprint.HEADER: header,
        }
        annotations = replace(
            state.annotations.with_entries(**entries),
            next=self._staging.next if self.sparse else None,
        )
        if self.base is None or not self.base.frame.is_ours or self._touched or self.restructured:
            annotations = replace(annotations, sizes=packed_sizes(state.sizes), records=pack_records(state.records))
        annotations = annotations if self.store.guarantee == "lock" else annotations.with_commit_listed()
        layers = layers_with(described.vlmetalayers, annotations, self.url)
        packed = frame.pack(replace(described, vlmetalayers=layers), header)
        room = packed.frame.vlmetalayer(LAYER) is not None
        state = replace(state, frame=packed.frame).with_annotations(annotations) if room else parse(packed.frame)
        return Prepared(packed.header, packed.tail, state)

    def _with_filters(self, state: State) -> Frame:
        """Return the frame whose header names the filters that other software shall go on with.

        If the data choose the filters, they are those of the first chunk in the commit that brings the first data.
        Later commits leave the header alone. Chunks that other processes have put do not count.
        """
        described = state.frame
        had_data = self.base is not None and (self.base.frame.offsets >= 0).any()
        if had_data or ("filters", AUTO) not in state.annotations.cparams:
            return described
        codes = described.offsets[described.offsets >= LOWEST_CODE].tolist()
        found = next((self._staging.filters[code] for code in codes if code in self._staging.filters), None)
        if found is None:
            return described
        # Stock would cut bits off values that it writes, without rounding and without a bound.
        exact = [(0, 0) if fid == FilterId.TRUNC_PREC else (fid, meta) for fid, meta in zip(*found, strict=True)]
        filters, metas = zip(*exact, strict=True)
        return replace(described, filters=filters, filters_meta=metas)

    def _stored_nbytes(self, offsets: npt.NDArray[np.int64]) -> int:
        """Return how many bytes the chunks of a sparse frame take.

        Where b2array wrote the base, the sum in its header is right, so only added and removed chunks are counted.
        """
        base, staging = self.base, self._staging
        if base is None or not base.frame.is_ours:
            return staging.nbytes(offsets, {})
        old, new, cbytes = base.frame.offsets, offsets, base.state.sizes[:, 0]
        before = base.frame.cbytes - index.sparse_cbytes(0, old)
        if not self.restructured:
            touched = sorted(self._touched)
            old, new, cbytes = old[touched], new[touched], cbytes[touched]
        gone = (old >= 0) & ~np.isin(old, new)
        came = (new >= 0) & ~np.isin(new, old)
        sizes = dict(zip(old[gone].tolist(), cbytes[gone].tolist(), strict=True))
        return max(0, before - staging.nbytes(old[gone], sizes) + staging.nbytes(new[came], {}))

    def _chain(self) -> bytes:
        """Return a digest of the base and the chunks that were put on top of it.

        Without it two frames of equal metadata and unequal data would be taken for the same generation. Where no lock
        excludes other writers, the salt tells this commit from an equal one that came first.
        """
        base = self.base.generation if self.base is not None else ""
        salt = b"" if self.store.guarantee == "lock" else os.urandom(16)
        return blake2b(base.encode() + self._staging.digest, digest_size=16, salt=salt).digest()


def _is_mostly_dead(state: State) -> bool:
    described, sizes = state.frame, state.sizes
    stored, known = described.offsets >= 0, sizes[:, 0]
    live = int(known.sum(dtype=np.int64)) + int(stored.sum()) * record_nbytes(sizes.shape[1] - 1)
    dead = described.cbytes - live
    return bool(known[stored].all()) and dead > max(described.frame_len // 2, _DEAD_LIMIT)


def copied(
    source: Source, store: Store, frame_type: FrameType, *, overwrite: bool = False,
    progress: Progress | None = None, lost: Collection[int] = (),
    locked: bool = False, replaces: str | None = None,
) -> Transaction:  # fmt: skip
    """Return a transaction of a new frame with the chunks of `source`, as they are stored, but for the `lost` ones."""
    old = source.state
    annotations = (
        Annotations() if old.annotations.foreign else replace(old.annotations, next=None, sizes=None, records=None)
    )
    layers = tuple(layer for layer in old.frame.vlmetalayers if layer[0] != LAYER)
    state = (
        old.with_frame(frame_type=frame_type, vlmetalayers=layers).with_annotations(annotations).with_tables(None, None)
    )
    new = Transaction(store, None, state, overwrite=overwrite, locked=locked, replaces=replaces)
    lost = {*lost, *annotations.lost}
    try:
        # A transaction notes all that is read; elsewhere only chunks that the index refers to are looked at.
        kept = range(old.frame.nchunks) if source.buffer else np.flatnonzero(old.frame.offsets >= LOWEST_CODE).tolist()
        stored = [n for n in kept if n not in lost and isinstance(source.locate(n), Location)]
        shown = progress or Progress(None)
        shown.advance(old.frame.nchunks - len(stored))
        for n, each in zip(stored, each_chunk(source, stored), strict=True):
            new.put(n, bytes(each.region))
            shown.advance()
        for n in lost:
            new.mark_lost(n)
    except BaseException:
        new.abort()
        raise
    return new


# Frames of one layout that replace frames of the other: a file for a directory, or the reverse.


def take_place(place: Store, made: Snapshot, old: Snapshot | None) -> Snapshot:
    """Let a new frame replace one of the other layout, and remove the old one.

    The new one is in `place`, where the old one was, or in the store that `Store.beside` has returned.
    """
    if made.store is not place:
        place.exchange(made.store)
        discard(made.store)
        return replace(made, store=place)
    if old is None or old.name == made.name:
        return made
    if made.name:
        place.delete([old.name])  # until then readers find the old one
        return made
    with suppress(OSError, B2ArrayError):  # what stays behind disturbs no reader
        offsets = old.frame.offsets
        place.delete([old.name, *map(index.chunk_name, offsets[offsets >= 0].tolist())])
    return made


def discard(store: Store) -> None:
    """Remove a frame that is in a place of its own, as far as possible."""
    with suppress(OSError, B2ArrayError):
        store.delete([*filter(is_part, store.listing()), ""])


def is_part(name: str) -> bool:
    """Whether a file in the directory of a sparse frame belongs to it."""
    return name in (FRAME_NAME, ".b2lock") or chunk_number(name) is not None
