"""A commit in the making: new chunks where nothing refers to them yet, and the index that will.

Until the commit no reader sees any of it. The commit swaps the index: a sparse frame gets a new file with it, a
contiguous one gets it appended and then, in one small write, a header that points to it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.buffers import Buffer
from b2array.codec.header import ChunkHeader, Special
from b2array.engine.snapshot import FRAME_NAME, Known, Place, Snapshot, Source, load, lost_error, whole_chunks
from b2array.engine.staging import Shelf
from b2array.errors import B2ArrayError, ConflictError, FormatError, ReadOnlyError, UnsupportedError
from b2array.format import extras, fingerprint, frame, notes
from b2array.format.extras import Extras
from b2array.format.frame import Frame, FrameType
from b2array.format.notes import Sizes, extras_of
from b2array.progress import Progress
from b2array.store.base import Store, attempts, identity, outrun, placed
from b2array.store.spans import Span
from b2array.store.spool import Spool

__all__ = ["Draft", "copied", "extras_of"]

Int64Array = npt.NDArray[np.int64]
T = TypeVar("T")

_SPOOL = "<spool>"
_CHAIN = "chain"
_ATOMIC_HEADER = 512
"""A header is rewritten in place only if all bytes that change lie in this many first ones, one sector of a disk."""
_DEAD_LIMIT = 2**16
"""Less dead space than this never makes a commit write a contiguous frame anew."""


class Draft:
    """Changes on top of a snapshot (or of nothing, for a new frame) until they are committed.

    Threads may put chunks at the same time; everything else is for one thread at a time.

    Parameters
    ----------
    store : Store
        Where the commit goes.
    base : Snapshot or None
        What the changes are made to.
    new : Frame, optional
        The frame to create if there is no base.
    overwrite : bool
        Whether a new frame may take the place of an old one.
    locked : bool
        Whether the caller holds the store's lock already.
    replaces : str, optional
        The store's version of the old frame whose place a new one takes, so that no other is overwritten.

    Raises
    ------
    ReadOnlyError
        The frame lies inside a larger file.
    UnsupportedError
        It was written by a later version, which this one cannot follow.
    """

    def __init__(
        self, store: Store, base: Snapshot | None, new: Frame | None = None, *,
        overwrite: bool = False, locked: bool = False, replaces: str | None = None,
    ) -> None:  # fmt: skip
        start = base.frame if base is not None else new
        if start is None:
            raise ValueError("a draft needs a base or a new frame")
        if base is not None and base.start:
            raise ReadOnlyError(f"{store.url}: a frame inside a larger file cannot be written")
        self.store = store
        self.base = base
        self.frame = replace(start, offsets=np.array(start.offsets, np.int64))
        self.extras = extras_of(start)
        if self.extras.foreign:
            raise UnsupportedError(
                f"{store.url} was written by a later version of b2array, which this one cannot follow"
            )
        self.sizes = notes.sizes_of(start, self.extras)
        self.sizes[self.sizes[:, 0] == extras.UNSIZED] = 0
        self._base_extras = self.extras
        self._base_cbytes = self.sizes[:, 0].copy()
        self.reshaped = False
        self.compacting = False
        self._compacted: Progress | None = None
        self._overwrite = overwrite
        self._locked = locked
        self._replaces = replaces
        self._touched: set[int] = set()
        self._read: set[int] = set()
        self._attrs: dict[str, bytes | None] = {}
        self._undo: list[tuple[Int64Array, Sizes, int, int, Sizes]] | None = None
        self._shelf = self._new_shelf()

    def _new_shelf(self) -> Shelf:
        if self.sparse:
            return Shelf(self.store, None, self._first_number())
        path, reserved = self.store.temporary(""), 0
        if self.base is None and path is not None:
            reserved = len(frame.pack(replace(self.frame, nbytes=0, offsets=self.frame.offsets[:0])).header)
        # What ends in memory anyway needs no file on the way there.
        in_memory = self.store.appendable and path is None
        return Shelf(self.store, Spool(path, reserved=reserved, **{"limit": np.inf} if in_memory else {}), 0)

    def _first_number(self) -> int:
        described, noted = self.frame, self.extras
        if self.base is None:
            if not self._overwrite:
                return 0
            try:
                described = load(self.store).frame
            except (FileNotFoundError, FormatError, UnsupportedError):
                return 0
            noted = extras_of(described)
        return max(noted.next or 0, int(described.offsets.max(initial=-1)) + 1)

    @property
    def sparse(self) -> bool:
        """Whether every chunk has a file of its own."""
        return self.frame.frame_type == FrameType.SPARSE

    @property
    def url(self) -> str:
        """The store, for messages."""
        return self.store.url

    @property
    def name(self) -> str:
        """The object that the commit replaces."""
        return FRAME_NAME if self.sparse else ""

    # What a reader of the draft needs.

    def place(self, n: int) -> Place | Special:
        """Return where chunk `n` is, new or old."""
        extent = self._shelf.extent(int(self.frame.offsets[n])) if 0 <= n < self.frame.nchunks else None
        if extent is not None:
            return Place(_SPOOL, *extent)
        where = self.frame.locate(n)
        if n in self.extras.lost:
            raise lost_error(n, self.url)
        if n not in self._touched:
            self._read.add(n)
        if isinstance(where, Special):
            return where
        if self.sparse or self.base is None:
            return Place(frame.chunk_name(where), 0, -1)
        return self.base.place_of(where)

    def read(self, spans: Sequence[Span], *, clip: bool = False) -> list[memoryview]:
        """Read bytes of the store's objects and of new chunks."""
        stored = [span for span in spans if span.name != _SPOOL]
        source = self.base.read if self.base is not None else self.store.read
        views = iter(source(stored, clip=clip)) if stored else iter(())
        return [self._shelf.read(span.start, span.stop) if span.name == _SPOOL else next(views) for span in spans]

    def gather(self, spans: Sequence[Span], places: Sequence[int], nbytes: int) -> memoryview:
        """Read bytes into one buffer, each span to its place."""
        return placed(self.read(spans), places, nbytes)

    @property
    def near(self) -> bool:
        """Whether reading is so fast that every worker may do it for itself."""
        return self.store.appendable

    @property
    def heads(self) -> MutableMapping[int, Known]:
        """No heads: chunks can change any time."""
        return {}

    def noted(self, n: int) -> Sizes | None:
        """Return the sizes of chunk `n` and its blocks, or None if they are not known."""
        row: Sizes = self.sizes[n]
        return row if row[0] else None

    def checked(self, n: int) -> bool:
        """Say whether a record of its checksums must follow chunk `n`."""
        return bool(self.sizes[n, 0]) and self._shelf.extent(int(self.frame.offsets[n])) is None

    @property
    def superseded(self) -> bool:
        """Whether the store holds another state than the one that the changes are made to."""
        return self.base is not None and self.base.superseded

    def read_heads(self, names: Sequence[str], nbytes: int) -> list[memoryview]:
        """Read the first bytes of objects."""
        found = []
        for head in self.store.head(names, nbytes):
            if isinstance(head, Exception):
                raise head
            found.append(head.data)
        return found

    # Changes.

    def put(self, n: int, buf: bytes) -> None:
        """Make `buf` (a chunk) chunk number `n`; one of zeros or NaN takes no room."""
        self.set_code(n, self.store_chunk(buf))

    def store_chunk(self, buf: bytes) -> int:
        """Put a chunk where it will stay, and return the index entry that refers to it; nothing is stored for zeros."""
        special = ChunkHeader.unpack(buf).special
        if special in frame.SPECIAL_OFFSETS and not self.frame.variable_chunks:
            return frame.special_offset(special)
        return self.store_stored(buf)

    def store_stored(self, buf: bytes) -> int:
        """Put a chunk where it will stay, even one of zeros."""
        return self._shelf.put(buf, self.sizes.shape[1] - 1)

    def reserve(self, count: int) -> int:
        """Set numbers for files aside, for other processes to use; returns the first. Commit before they do."""
        self.reshaped = True  # another writer may have set the same ones aside
        return self._shelf.reserve(count)

    def adopt(self, n: int, code: int, sizes: npt.NDArray[np.uint32], record: bytes) -> None:
        """Let chunk `n` be one that another process has put into file `code`; see `Shelf.adopt`."""
        self._shelf.adopt(code, sizes, record)
        self.set_code(n, code)

    def set_code(self, n: int, code: int) -> None:
        """Let index entry `n` be `code`, what `store_chunk` returned."""
        if self._undo is not None:
            self._undo.append((self.frame.offsets, self.sizes, n, int(self.frame.offsets[n]), self.sizes[n].copy()))
        row = self._shelf.sizes.get(code)
        self.frame.offsets[n] = code
        self.sizes[n] = 0 if row is None else row[: self.sizes.shape[1]]
        self._touched.add(n)
        if n in self.extras.lost:
            self.extras = replace(self.extras, lost=tuple(k for k in self.extras.lost if k != n))

    def lose(self, n: int) -> None:
        """Let chunk `n` be lost: reading it is an error, until it is written as a whole."""
        self.set_code(n, self._shelf.tomb())
        self.extras = replace(self.extras, lost=tuple(sorted({*self.extras.lost, n})))

    def avoid(self, number: int) -> None:
        """Give no new file this number or a lower one."""
        self._shelf.next = max(self._shelf.next, number + 1)

    def reindex(self, order: npt.ArrayLike, *, nbytes: int | None = None, chunksize: int | None = None) -> None:
        """Give the chunks a new order, count or size.

        Parameters
        ----------
        order : sequence of int
            For each new position the old one, or -1 for a chunk of zeros.
        nbytes, chunksize : int, optional
            New values of these fields of the frame.
        """
        old = np.asarray(order, np.int64).reshape(-1)
        # One more entry, which stands for all zeros, so that -1 finds it.
        offsets = np.append(self.frame.offsets, frame.special_offset(Special.ZEROS))[old]
        self.sizes = np.append(self.sizes, np.zeros((1, self.sizes.shape[1]), np.uint32), axis=0)[old]
        self.frame = replace(
            self.frame,
            offsets=offsets,
            nbytes=self.frame.nbytes if nbytes is None else nbytes,
            chunksize=self.frame.chunksize if chunksize is None else chunksize,
        )
        self.sizes = np.ascontiguousarray(self.sizes[:, : 1 + notes.sized_blocks(self.frame)])
        if self.extras.lost:
            self.extras = replace(self.extras, lost=tuple(np.flatnonzero(np.isin(old, self.extras.lost)).tolist()))
        self.reshaped = True

    def set_attr(self, name: str, content: bytes | None) -> None:
        """Set an attribute (or remove it): in a metalayer of its own if there is room, else in b2array's."""
        self._attrs[name] = content
        self.frame, self.extras = notes.with_attr(self.frame, self.extras, name, content)

    def compact(self, progress: Progress | None = None) -> None:
        """Let the commit write everything anew, without dead space; `progress` counts the chunks then."""
        self.compacting, self._compacted = True, progress

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Undo what is changed inside the block if it raises."""
        state = self.frame, self.sizes, self.extras, self.reshaped, dict(self._attrs)
        outer, self._undo = self._undo, []
        log = self._undo
        try:
            yield
        except BaseException:
            for offsets, sizes, n, code, row in reversed(log):
                offsets[n], sizes[n] = code, row[: sizes.shape[1]]
            self.frame, self.sizes, self.extras, self.reshaped, self._attrs = state
            raise
        else:
            if outer is not None:
                outer.extend(log)
        finally:
            self._undo = outer

    @property
    def changed(self) -> bool:
        """Whether there is anything to commit."""
        edited = self._touched or self._attrs or self.reshaped or self.compacting
        return self.base is None or bool(edited) or self.extras != self._base_extras

    # The commit.

    def commit(self) -> Snapshot:
        """Make the changes visible, all at once.

        Returns
        -------
        Snapshot
            The new state.

        Raises
        ------
        ConflictError
            Another writer changed what these changes build on; the store is as that writer left it.
        """
        try:
            snapshot = self._commit() if self.base is None or self.changed else self.base
        except BaseException:
            self.abort()
            raise
        self._shelf.close()
        with suppress(OSError, B2ArrayError):  # what stays behind is in nobody's way
            self.store.delete(self._shelf.unused(snapshot.frame.offsets))
        return snapshot

    def abort(self) -> None:
        """Forget the changes, as long as no index refers to them."""
        self._shelf.close()
        with suppress(OSError, B2ArrayError):
            if not self._shelf.sizes or not self.sparse or not self._shelf.ours:
                return
            with self._lock() if self.base is not None else nullcontext():
                try:
                    offsets = load(self.store).frame.offsets
                except FileNotFoundError:
                    offsets = self.frame.offsets[:0]
                self.store.delete(self._shelf.unused(offsets))

    def stage(self, entry: tuple[str, Any], put: Callable[[Iterable[Buffer]], object]) -> tuple[frame.Packed, bytes]:
        """Write everything but what makes readers see it, for a commit that is more than this one.

        The caller holds the lock, and publishes what is returned.

        Parameters
        ----------
        entry : tuple of (str, object)
            Goes among the extras of the frame.
        put : callable
            Takes the pieces of a new object that is to replace the old one, if that is how readers come to see it.

        Returns
        -------
        packed : frame.Packed
            The new frame.
        header : bytes
            What is to be written over the beginning of the object; empty if `put` was called.

        Raises
        ------
        ConflictError
            Another writer changed what these changes build on.
        """

        def write(current: Snapshot) -> tuple[frame.Packed, bytes]:
            self.extras = replace(self.extras, unknown=tuple({**dict(self.extras.unknown), entry[0]: entry[1]}.items()))
            if self.sparse or self.base is None:
                packed = self._packed(0)
                put(self._pieces(packed))
                return packed, b""
            packed = self._packed(current.frame.frame_len - current.frame.header_len)
            if not self._fits(current, packed):
                with self._whole() as new:
                    packed = new._packed(0)
                    put(new._pieces(packed))
                return packed, b""
            tail = chain(self._shelf.pieces(self.frame.offsets), (packed.tail,))
            self.store.append("", current.frame.frame_len, tail)
            return packed, bytes(packed.header)

        return self._on_newest(write, nullcontext)

    def settled(self, published: Frame) -> None:
        """Take note that what was staged has been published."""
        self._shelf.close()
        with suppress(OSError, B2ArrayError):
            self.store.delete(self._shelf.unused(published.offsets))

    def _lock(self) -> AbstractContextManager[None]:
        return nullcontext() if self._locked else self.store.lock(self.name)

    @property
    def _occupied(self) -> bool:
        try:
            return self.store.guarantee == "lock" and self.store.stamp(self.name).size > 0
        except FileNotFoundError:
            return False

    def _commit(self) -> Snapshot:
        self._shelf.require_open()
        if self.base is None:
            # A writer of the frame that goes must not come in between: it would write into the new one.
            with self._lock() if self._overwrite and self._occupied else nullcontext():
                return self._publish_new()
        return self._on_newest(self._publish, self._lock)

    def _on_newest(self, verb: Callable[[Snapshot], T], lock: Callable[[], AbstractContextManager[None]]) -> T:
        """Put the changes on top of the newest state and call `verb` with that; again if another writer comes first."""
        for _ in attempts(self.store):
            with lock():
                current = load(self.store)
                if self.base is not None and current.generation != self.base.generation:
                    self._rebase(self.base, current)
                try:
                    return verb(current)
                except ConflictError:  # a store without locks compares while it writes
                    if load(self.store).generation == current.generation:
                        raise
        raise outrun(self.store)

    def catch_up(self) -> bool:
        """Go on from the state of another writer whose commit took the bytes of the base away; say whether it did.

        Raises
        ------
        ConflictError
            That one changed what these changes build on.
        """
        if self.base is None or self.sparse or self.store.appendable or self._undo is not None:
            return False
        current = load(self.store)
        if current.generation == self.base.generation:
            return False
        self._rebase(self.base, current)
        return True

    def _rebase(self, base: Snapshot, current: Snapshot) -> None:
        """Put the changes on top of what another writer committed, if they do not touch the same things."""
        was, now = base.frame, current.frame
        theirs = extras_of(now)
        if self._touched or self._read or self.reshaped or self.compacting:
            self._check_mergeable(base, current)
        before, after = notes.attrs(was, self._base_extras), notes.attrs(now, theirs)
        lost = [name for name in self._attrs if before.get(name) != after.get(name)]
        if lost:
            raise ConflictError(f"{self.url}: attributes {lost} were changed by another writer as well")
        merged = notes.merged(self._base_extras, self.extras, theirs)
        touched = sorted(self._touched)
        offsets, sizes = np.array(now.offsets, np.int64), notes.sizes_of(now, theirs)
        offsets[touched], kept = self.frame.offsets[touched], self.sizes[touched]
        self.base, self._base_extras, self._base_cbytes = current, theirs, sizes[:, 0].copy()
        sizes[touched] = kept
        self.sizes = sizes
        self.frame, self.extras = replace(now, offsets=offsets), merged
        for name, content in self._attrs.items():
            self.frame, self.extras = notes.with_attr(self.frame, self.extras, name, content)
        self._shelf.next = max(self._shelf.next, theirs.next or 0)

    def _check_mergeable(self, base: Snapshot, current: Snapshot) -> None:
        was, now = base.frame, current.frame
        # Other software rewrites chunks in their places, and a file written anew has others in the old ones.
        ours = now.fingerprint_type == frame.FINGERPRINT_128
        moved = not self.sparse and identity(base.version or "") != identity(current.version or "")
        changed = notes.changed_chunks(was, now, moved=moved) if current.alike(base) and ours else None
        if self.reshaped or self.compacting or changed is None:
            raise ConflictError(f"{self.url} was changed by another writer; call refresh() and repeat the change")
        lost = sorted(changed & (self._touched | self._read))
        if lost:
            raise ConflictError(f"{self.url}: chunks {lost} were changed by another writer as well")

    def _publish_new(self) -> Snapshot:
        packed = self._packed(0)

        def write() -> str:
            path = self._shelf.finish(packed.header, packed.tail, durable=config.durable)
            if path is not None:
                return self.store.adopt(path, "", exclusive=not self._overwrite).version
            if self._overwrite:
                return self.store.replace(self.name, self._pieces(packed), expected=self._replaces).version
            return self.store.create(self.name, self._pieces(packed)).version

        return self._swap(packed, write)

    def _publish(self, current: Snapshot) -> Snapshot:
        if self.sparse:
            packed = self._packed(0)
            pieces = (packed.header, packed.tail)
            return self._swap(packed, lambda: self.store.replace(self.name, pieces, expected=current.version).version)
        packed = self._packed(current.frame.frame_len - current.frame.header_len)
        if self._must_rewrite(current, packed):
            return self._rewrite(current)
        if self._mostly_dead(packed):
            with suppress(FormatError):  # a chunk that cannot be read is no reason to refuse others
                return self._rewrite(current)

        def extend() -> str:
            tail = chain(self._shelf.pieces(self.frame.offsets), (packed.tail,))
            (old,) = self.store.read([Span("", 0, current.frame.header_len)])
            self.store.append("", current.frame.frame_len, tail)
            try:
                return self.store.patch("", 0, packed.header).version
            except BaseException:
                with suppress(OSError):  # half a header is none
                    self.store.patch("", 0, old)
                    self.store.append("", current.frame.frame_len, ())
                raise

        return self._swap(packed, extend)

    def _must_rewrite(self, current: Snapshot, packed: frame.Packed) -> bool:
        if not self.store.appendable:
            warnings.warn(f"{self.url}: one file in this store is written anew with every change", stacklevel=2)
            return True
        return self.compacting or not self._fits(current, packed)

    def _mostly_dead(self, packed: frame.Packed) -> bool:
        stored, known = packed.frame.offsets >= 0, self.sizes[:, 0]
        live = int(known.sum(dtype=np.int64)) + int(stored.sum()) * extras.record_nbytes(self.sizes.shape[1] - 1)
        dead = packed.frame.cbytes - live
        return bool(known[stored].all()) and dead > max(packed.frame.frame_len // 2, _DEAD_LIMIT)

    def _fits(self, current: Snapshot, packed: frame.Packed) -> bool:
        """Whether the frame can be appended to the old one and then be pointed to in one small write."""
        if not self.store.appendable or not packed.frame.nchunks:
            return False
        (old,) = self.store.read([Span("", 0, current.frame.header_len)])
        return len(old) == len(packed.header) and packed.header[_ATOMIC_HEADER:] == old[_ATOMIC_HEADER:]

    def _rewrite(self, current: Snapshot) -> Snapshot:
        """Write everything anew, without dead space, in the place of the old file."""
        with self._whole(self._compacted) as new:
            packed = new._packed(0)
            pieces = new._pieces(packed)
            return self._swap(packed, lambda: self.store.replace("", pieces, expected=current.version).version)

    @contextmanager
    def _whole(self, progress: Progress | None = None) -> Iterator[Draft]:
        """Give a draft of a new file with every chunk; copying a chunk does not count as reading it."""
        source = copy.copy(self)
        source._read = set()
        new = copied(source, self.store, FrameType.CONTIGUOUS, progress=progress)
        try:
            yield new
        finally:
            new.abort()

    def _pieces(self, packed: frame.Packed) -> Iterator[Buffer]:
        return chain((packed.header,), self._shelf.pieces(self.frame.offsets), (packed.tail,))

    def _swap(self, packed: frame.Packed, write: Callable[[], str]) -> Snapshot:
        """Let the new frame take effect; a failure after the fact, as of an answer that was lost, is none."""
        gone = self._shelf.missing(self.frame.offsets)
        if gone:
            raise ConflictError(f"{self.url}: somebody removed {', '.join(gone)} before the commit that needs them")
        generation = packed.frame.fingerprint.hex()
        try:
            version = write()
        except Exception as error:
            exclusive = isinstance(error, FileExistsError) and self.store.guarantee == "lock"
            if exclusive or (config.durable and self.store.appendable):
                raise
            found = None
            with suppress(OSError, B2ArrayError):
                found = load(self.store)
            if found is None or found.generation != generation:
                raise
            return found
        return Snapshot(self.store, packed.frame, 0, version, generation)

    def _packed(self, data_start: int) -> frame.Packed:
        """Pack the frame whose new chunks lie from `data_start` on, in bytes from the end of the header."""
        offsets, cbytes = self._shelf.placed(self.frame.offsets, data_start)
        if self.sparse:
            cbytes = frame.sparse_cbytes(self._stored_nbytes(offsets), offsets)
        described = replace(
            self.frame, offsets=offsets, cbytes=cbytes, frame_len=0, nthreads_decompress=fingerprint.MARK
        )
        header = frame.pack_header(replace(described, vlmetalayers=((extras.LAYER, b""),)))
        noted = replace(
            self.extras,
            next=self._shelf.next if self.sparse else None,
            sizes=notes.packed_sizes(self.sizes),
            unknown=tuple({**dict(self.extras.unknown), **self._marks(), fingerprint.HEADER: header}.items()),
        )
        layers = notes.with_extras(described.vlmetalayers, noted, self.url)
        return frame.pack(replace(described, vlmetalayers=layers))

    def _marks(self) -> dict[str, object]:
        """Return what tells this commit from others, and its chunks from others where their places do not."""
        marked = not self.sparse and not self.store.appendable
        return {_CHAIN: self._chain(), notes.MARKS: self._shelf.marks(self.frame.offsets).tobytes() if marked else b""}

    def _chain(self) -> bytes:
        """Return a digest of the base and the chunks that were put on top of it.

        Without it two frames of equal metadata and unequal data would be taken for the same generation.
        """
        base = self.base.generation if self.base is not None else ""
        return blake2b(base.encode() + self._shelf.digest, digest_size=16).digest()

    def _stored_nbytes(self, offsets: Int64Array) -> int:
        """Sum up the sizes of a sparse frame's chunks.

        Where b2array wrote the base, the sum in its header is right, and only what came and went is looked at.
        """
        base = self.base.frame if self.base is not None else None
        if base is None or base.fingerprint_type != frame.FINGERPRINT_128:
            return self._shelf.nbytes(offsets, {})
        gone, came = np.setdiff1d(base.offsets, offsets), np.setdiff1d(offsets, base.offsets)
        noted = np.isin(base.offsets, gone)
        sizes = dict(zip(base.offsets[noted].tolist(), self._base_cbytes[noted].tolist(), strict=True))
        before = base.cbytes - frame.sparse_cbytes(0, base.offsets)
        return max(0, before - self._shelf.nbytes(gone, sizes) + self._shelf.nbytes(came, {}))


def copied(
    source: Source, store: Store, frame_type: FrameType, *, overwrite: bool = False,
    progress: Progress | None = None, lost: Collection[int] = (),
    locked: bool = False, replaces: str | None = None,
) -> Draft:  # fmt: skip
    """Return a draft of a new frame with the chunks of `source`, copied as they are, but for those that are `lost`."""
    noted = source.extras if isinstance(source, Draft) else extras_of(source.frame)
    layers = tuple(layer for layer in source.frame.vlmetalayers if layer[0] != extras.LAYER)
    described = replace(source.frame, frame_type=frame_type, vlmetalayers=layers)
    new = Draft(store, None, described, overwrite=overwrite, locked=locked, replaces=replaces)
    new.extras = Extras() if noted.foreign else replace(noted, next=None, sizes=None)
    lost = {*lost, *new.extras.lost}
    try:
        stored = [n for n in range(source.frame.nchunks) if n not in lost and isinstance(source.place(n), Place)]
        shown = progress or Progress(None)
        shown.advance(source.frame.nchunks - len(stored))
        for n, each in zip(stored, whole_chunks(source, stored), strict=True):
            new.put(n, bytes(each.region))
            shown.advance()
        for n in lost:
            new.lose(n)
    except BaseException:
        new.abort()
        raise
    return new
