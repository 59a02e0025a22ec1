"""A commit in the making: new chunks where nothing refers to them yet, and the index that will.

In a sparse frame a new chunk goes into a file of its own at once. In a contiguous one it waits in a spool until the commit
appends it, or, for a new file, is written where it will stay. Until the commit no reader sees any of it.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from b2array import chunk, config, encoder, extras, frame
from b2array.errors import ConflictError, FormatError, ReadOnlyError, UnsupportedError
from b2array.extras import Extras
from b2array.frame import Frame, FrameType
from b2array.metalayers import MAX_LAYERS, MAX_NAME_NBYTES, Layers
from b2array.snapshot import FRAME_NAME, Place, Snapshot, Source, Want, fetch, load
from b2array.spans import Span
from b2array.spec import HEADER_LEN, Buffer, ChunkHeader, Special
from b2array.spool import Spool
from b2array.storage import Store, gathered

__all__ = ["Draft", "copied", "extras_of"]

Int64Array = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.uint32]

_SPOOL = "<spool>"
_CHAIN = "chain"
_SIZES_LIMIT = 2**22
"""Above this many entries a record of all block sizes would not stay under its limit anyway."""
_ATOMIC_HEADER = 512
"""A header is rewritten in place only if all bytes that change lie in this many first ones, one sector of a disk."""


class Draft:
    """Changes on top of a snapshot (or of nothing, for a new frame) until they are committed.

    Threads may put chunks at the same time; everything else is for one thread.

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
    """

    def __init__(
        self, store: Store, base: Snapshot | None, new: Frame | None = None, *, overwrite: bool = False
    ) -> None:
        start = base.frame if base is not None else new
        if start is None:
            raise ValueError("a draft needs a base or a new frame")
        self.store = store
        self.base = base
        self.overwrite = overwrite
        self.frame = replace(start, offsets=np.array(start.offsets, np.int64))
        self.extras = extras_of(self.frame)
        self.sizes = _sizes_of(self.frame, self.extras)
        self.reshaped = False
        self._touched: set[int] = set()
        self._read: set[int] = set()
        self.noted: dict[str, bytes] | None = None
        self._layers: dict[str, bytes | None] = {}
        self._created: list[str] = []
        self._sums: dict[int, bytes] = {}
        highest = int(self.frame.offsets.max(initial=-1))
        self._next = max(self.extras.next or 0, highest + 1) if base is not None else 0
        self._mutex = threading.Lock()
        self._spooled: list[tuple[int, int]] = []
        self._spool = self._new_spool() if not self.sparse else Spool()

    def _new_spool(self) -> Spool:
        reserved = len(frame.pack(replace(self.frame, nbytes=0, offsets=np.empty(0, np.int64))).header)
        return Spool(self.store.temporary(""), reserved)

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
        if not 0 <= n < self.frame.nchunks:
            raise IndexError(f"chunk {n} is out of bounds for {self.frame.nchunks} chunks")
        found = int(self.frame.offsets[n])
        if -(2**32) <= found < 0:
            start, stop = self._spooled[-1 - found]
            return Place(_SPOOL, start, stop)
        self._read.add(n)
        if found < 0:
            return Special(self.frame.locate(n))
        if self.sparse or self.base is None:
            return Place(frame.chunk_name(found), 0, -1)
        return self.base.place_of(found)

    def read(self, spans: Sequence[Span]) -> list[memoryview]:
        """Read bytes of the store's objects and of the spool."""
        stored = [span for span in spans if span.name != _SPOOL]
        source = self.base.read if self.base is not None else self.store.read
        views = iter(source(stored)) if stored else iter(())
        return [self._spool.read(span.start, span.stop) if span.name == _SPOOL else next(views) for span in spans]

    def gather(self, spans: Sequence[Span]) -> memoryview:
        """Read bytes of the store's objects and of the spool into one buffer."""
        return gathered(self.read(spans))

    @property
    def near(self) -> bool:
        """Whether reading is so fast that every worker may do it for itself."""
        return self.store.appendable

    @property
    def heads(self) -> dict[int, chunk.Head]:
        """Nothing: chunks change while a draft is made."""
        return {}

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
        self.set_code(n, self.store_chunk(buf), buf)

    def set_code(self, n: int, code: int, buf: bytes) -> None:
        """Let index entry `n` be `code`, what `store_chunk` returned for `buf`."""
        self.frame.offsets[n] = code
        self._touched.add(n)
        if self.sizes is not None:
            nothing_stored = code < -(2**32) or not buf
            self.sizes[n] = 0 if nothing_stored else extras.sizes_row(chunk.unpack_head(buf), self.sizes.shape[1] - 1)

    def store_chunk(self, buf: bytes) -> int:
        """Put a chunk where it will stay, and return the index entry that refers to it; nothing is stored for zeros."""
        header = ChunkHeader.unpack(buf)
        if header.special in frame.SPECIAL_OFFSETS and not self.frame.variable_chunks:
            return frame.special_offset(header.special)
        return self.store_stored(buf)

    def store_stored(self, buf: bytes) -> int:
        """Put a chunk where it will stay, even one of zeros."""
        buf = encoder.stored_special(buf)
        record = extras.pack_record(buf)
        if not self.sparse:
            with self._mutex:
                start = self._spool.write(buf, record)
                self._spooled.append((start, start + len(buf)))
                code = -len(self._spooled)
                self._sums[code] = record[-4:]
                return code
        while True:
            with self._mutex:
                number = self._next
                self._next += 1
            name = frame.chunk_name(number)
            try:
                self.store.create(name, (buf, record))
            except FileExistsError:
                continue
            self._created.append(name)
            self._sums[number] = record[-4:]
            return number

    def reindex(self, order: Sequence[int] | Int64Array, **changes: Any) -> None:
        """Give the chunks a new order, count or size.

        Parameters
        ----------
        order : sequence of int
            For each new position the old one, or -1 for a chunk of zeros.
        **changes
            Fields of the frame that change with it: nbytes, chunksize.
        """
        old = np.asarray(order, np.int64)
        zeros = frame.special_offset(Special.ZEROS)
        offsets = np.where(old >= 0, self.frame.offsets[np.maximum(old, 0)] if self.frame.nchunks else zeros, zeros)
        if self.sizes is not None:
            rows = (
                self.sizes[np.maximum(old, 0)] if len(self.sizes) else np.zeros((len(old), self.sizes.shape[1]), "u4")
            )
            rows[old < 0] = 0
            self.sizes = rows
        self.frame = replace(self.frame, offsets=offsets, **changes)
        if self.frame.variable_chunks:
            self.sizes = None
        self.reshaped = True

    def set_metalayer(self, name: str, content: bytes) -> None:
        """Replace the content of a metalayer by one of the same length."""
        layers = tuple((key, content if key == name else old) for key, old in self.frame.metalayers)
        self.frame = replace(self.frame, metalayers=layers)
        self.reshaped = True

    def set_attr(self, name: str, content: bytes) -> None:
        """Set an attribute: in a metalayer of its own if it has one or there is room, else in b2array's."""
        others = [key for key, _ in self.frame.vlmetalayers if key not in (name, extras.LAYER)]
        fits = len(name.encode()) <= MAX_NAME_NBYTES and name != extras.LAYER and len(others) < MAX_LAYERS - 1
        if not fits:
            self.noted = {**self.attrs, name: content}
            return
        self.set_layer(name, frame.pack_vlmeta(content))
        if name in self.attrs:
            self.noted = {key: value for key, value in self.attrs.items() if key != name}

    def remove_attr(self, name: str) -> None:
        """Remove an attribute, wherever it is."""
        if self.frame.vlmetalayer(name) is not None and name != extras.LAYER:
            self.set_layer(name, None)
        else:
            self.noted = {key: value for key, value in self.attrs.items() if key != name}

    @property
    def attrs(self) -> Mapping[str, bytes]:
        """The attributes that have no metalayer of their own."""
        return dict(self.extras.attrs) if self.noted is None else self.noted

    def set_layer(self, name: str, content: bytes | None) -> None:
        """Set a variable-length metalayer to a chunk, or remove it."""
        self._layers[name] = content
        self.frame = replace(self.frame, vlmetalayers=_with_layer(self.frame.vlmetalayers, name, content))

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
            snapshot = self._commit()
        except BaseException:
            self.abort()
            raise
        self._spool.close()
        return snapshot

    def _commit(self) -> Snapshot:
        if self.base is None:
            return self._publish_new()
        for _ in range(config.retries + 1):
            with self.store.lock(self.name):
                current = load(self.store, start=self.base.start)
                if current.generation == self.base.generation:
                    return self._publish(self.base)
            self._rebase(current)
        raise ConflictError(f"{self.url}: other writers came first {config.retries + 1} times")

    def abort(self) -> None:
        """Forget the changes."""
        self._spool.close()
        created, self._created = self._created, []
        if created:
            self.store.delete(created)

    def _rebase(self, current: Snapshot) -> None:
        """Put the changes on top of what another writer committed, if they do not touch the same chunks."""
        base, now = self.base.frame if self.base is not None else self.frame, current.frame
        same_shape = (base.metalayers, base.nbytes, base.chunksize) == (now.metalayers, now.nbytes, now.chunksize)
        ours = now.fingerprint_type == frame.FINGERPRINT_128
        if self.reshaped or not same_shape or not ours:
            raise ConflictError(f"{self.url} was changed by another writer; call refresh() and repeat the change")
        changed = set(np.flatnonzero(base.offsets != now.offsets).tolist())
        lost = sorted(changed & (self._touched | self._read))
        if lost:
            raise ConflictError(f"{self.url}: chunks {lost} were changed by another writer as well")
        offsets = np.array(now.offsets, np.int64)
        touched = sorted(self._touched)
        offsets[touched] = self.frame.offsets[touched]
        layers = now.vlmetalayers
        for name, content in self._layers.items():
            layers = _with_layer(layers, name, content)
        sizes = _sizes_of(now, extras_of(now))
        if sizes is not None and self.sizes is not None:
            sizes[touched] = self.sizes[touched]
        self.base, self.sizes = current, sizes
        self.extras = extras_of(now)
        self.frame = replace(now, offsets=offsets, vlmetalayers=layers)

    def _publish_new(self) -> Snapshot:
        packed = self._packed(0)
        if self.sparse:
            pieces: Iterable[Buffer] = (packed.header, packed.tail)
        else:
            if self._spool.on_disk and self._spool.path is not None:
                self._spool.finish(packed.header, packed.tail, durable=config.durable)
                stamp = self.store.adopt(self._spool.path, "", exclusive=not self.overwrite)
                return self._snapshot(packed.frame, 0, stamp.version)
            pieces = chain((packed.header,), self._spool.pieces(), (packed.tail,))
        write = self.store.replace if self.overwrite else self.store.create
        version = write(self.name, pieces).version
        self.store.close()
        return self._snapshot(packed.frame, 0, version)

    def _publish(self, base: Snapshot) -> Snapshot:
        if self.sparse:
            packed = self._packed(0)
            stamp = self.store.replace(self.name, (packed.header, packed.tail), expected=base.version)
            return self._snapshot(packed.frame, 0, stamp.version)
        if base.start:
            raise ReadOnlyError(f"{self.url}: a frame inside a larger file cannot be written")
        if not self.frame.nchunks or not self.store.appendable:
            return self._rewrite(base)
        packed = self._packed(base.frame.frame_len - base.frame.header_len)
        (old,) = self.store.read([Span("", 0, base.frame.header_len)])
        if len(old) != len(packed.header) or packed.header[_ATOMIC_HEADER:] != old[_ATOMIC_HEADER:]:
            return self._rewrite(base)
        self.store.append("", base.frame.frame_len, chain(self._spool.pieces(), (packed.tail,)))
        self.store.patch("", 0, packed.header)
        return self._snapshot(packed.frame, base.start, self.store.stamp("").version)

    def _rewrite(self, base: Snapshot) -> Snapshot:
        """Write everything anew, without dead space, in the place of the old file."""
        new = copied(self, self.store, FrameType.CONTIGUOUS)
        new.extras = self.extras
        try:
            packed = new._packed(0)
            pieces = chain((packed.header,), new._spool.pieces(), (packed.tail,))
            stamp = self.store.replace("", pieces, expected=base.version)
        finally:
            new.abort()
        self.store.close()
        return self._snapshot(packed.frame, 0, stamp.version)

    def _packed(self, data_start: int) -> frame.Packed:
        """Pack the frame whose new chunks lie from `data_start` on, in bytes from the end of the header."""
        offsets = np.array(self.frame.offsets, np.int64)
        if self._spooled:
            starts = np.array([start for start, _ in self._spooled], np.int64) + data_start
            new = (offsets < 0) & (offsets >= -(2**32))
            offsets[new] = starts[-1 - offsets[new]]
        sizes = extras.pack_sizes(self.sizes) if self.sizes is not None and self.frame.nchunks else None
        noted = replace(
            self.extras,
            attrs=tuple(self.attrs.items()),
            next=self._next if self.sparse else None,
            sizes=sizes,
            unknown=_with_key(self.extras.unknown, _CHAIN, self._chain()),
        )
        layers = _with_extras(self.frame.vlmetalayers, noted, self.url)
        cbytes = self._sparse_cbytes(offsets) if self.sparse else data_start + self._spool.length
        return frame.pack(replace(self.frame, offsets=offsets, vlmetalayers=layers, cbytes=cbytes))

    def _chain(self) -> bytes:
        """Return a digest of the chunks that were ever put into this frame.

        Without it two frames of equal metadata and unequal data would be taken for the same generation.
        """
        digest = blake2b(dict(self.extras.unknown).get(_CHAIN, b""), digest_size=16)
        for n in sorted(self._touched):
            if n < self.frame.nchunks:
                code = int(self.frame.offsets[n])
                digest.update(n.to_bytes(8, "little") + self._sums.get(code, b""))
        return digest.digest()

    def _sparse_cbytes(self, offsets: Int64Array) -> int:
        """Sum up the chunks; one of unknown size counts with its own header, a repeated read of which is avoided."""
        known = self.sizes[:, 0].astype(np.int64) if self.sizes is not None else np.zeros(len(offsets), np.int64)
        unknown = np.flatnonzero((known == 0) & (offsets >= 0)).tolist()
        if unknown:
            heads = self.read_heads([frame.chunk_name(int(offsets[n])) for n in unknown], HEADER_LEN)
            known[unknown] = [ChunkHeader.unpack(head).cbytes for head in heads]
        return frame.sparse_cbytes(int(known[offsets >= 0].sum()), offsets)

    def _snapshot(self, packed: Frame, start: int, version: str) -> Snapshot:
        return Snapshot(self.store, packed, start, version, packed.fingerprint.hex())


def copied(source: Source, store: Store, frame_type: FrameType, *, overwrite: bool = False) -> Draft:
    """Return a draft of a new frame with the chunks of `source`, copied as they are."""
    new = Draft(store, None, replace(source.frame, frame_type=frame_type), overwrite=overwrite)
    for n in range(source.frame.nchunks):
        place = source.place(n)
        if not isinstance(place, Special):
            (stored,) = fetch(source, [Want(n, None)])
            new.put(n, bytes(stored.region))
    return new


def _with_layer(layers: Layers, name: str, content: bytes | None) -> Layers:
    kept = tuple((key, old) if key != name or content is None else (key, content) for key, old in layers)
    if content is None:
        return tuple(layer for layer in kept if layer[0] != name)
    return kept if any(key == name for key, _ in kept) else (*kept, (name, content))


def extras_of(described: Frame) -> Extras:
    """Return what b2array noted in a frame; empty if there is nothing, or nothing that can be understood."""
    raw = described.vlmetalayer(extras.LAYER)
    if raw is None:
        return Extras()
    array = described.metalayer("b2nd") or described.metalayer("caterva")
    ndim = array[2] if array is not None and len(array) > 2 else -1
    try:
        content = frame.unpack_vlmeta(raw)
    except (FormatError, UnsupportedError):
        return Extras()
    return Extras.unpack(content, itemsize=described.typesize, ndim=ndim, nchunks=described.nchunks)


def _sizes_of(described: Frame, noted: Extras) -> Sizes | None:
    if described.chunksize <= 0 or described.blocksize <= 0 or described.vl_blocks:
        return None
    nblocks = -(-described.chunksize // described.blocksize)
    if described.nchunks * (1 + nblocks) > _SIZES_LIMIT:
        return None
    known = extras.unpack_sizes(noted.sizes, described.nchunks, nblocks) if noted.sizes is not None else None
    if known is not None:
        return known.copy()
    return np.zeros((described.nchunks, 1 + nblocks), np.uint32)


def _with_extras(layers: Layers, noted: Extras, url: str) -> Layers:
    others = tuple(layer for layer in layers if layer[0] != extras.LAYER)
    if len(others) >= MAX_LAYERS:
        warnings.warn(f"{url} has {len(others)} variable-length metalayers: no room for b2array's own", stacklevel=2)
        return others
    return (*others, (extras.LAYER, frame.pack_vlmeta(noted.pack())))


def _with_key(entries: tuple[tuple[Any, Any], ...], key: str, value: object) -> tuple[tuple[Any, Any], ...]:
    return (*((old, kept) for old, kept in entries if old != key), (key, value))
