"""Kept states: named states of a frame that remain readable, and the ledger that lists them.

A commit overwrites no data, so to keep an earlier state, it is enough to store its index. `pack_state` packs the index
with the header and the metalayers of the state. In a contiguous frame, the packed state precedes the frame's index, and
is dead space for other software. In a sparse frame, a small packed state is stored in the ledger, and a large one in an
object next to ``chunks.b2frame``. The ledger is an entry of b2array's metalayer, which other software does not change.
This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Self

import msgpack
import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.buffers import Buffer
from b2array.codec import codecs
from b2array.codec.chunk_header import CodecId
from b2array.errors import FormatError, UnsupportedError
from b2array.format import fingerprint, frame, index
from b2array.format.annotations import LAYER, pack_records
from b2array.format.attributes import UNREADABLE
from b2array.format.checksums import record_nbytes
from b2array.format.frame import FINGERPRINT_128
from b2array.format.frame_header import FrameType, Header, unpack_header
from b2array.format.state import State, parse, sizes_width

__all__ = [
    "DIGEST_NBYTES",
    "KEPT",
    "Kept",
    "Ledger",
    "has_room",
    "ledger_of",
    "name_for_group",
    "object_name",
    "pack_state",
    "seal",
    "unpack_state",
    "unseal",
]

KEPT = ".b2kept"
"""The ending of the names of objects with kept states of a sparse frame."""
DIGEST_NBYTES = 16
"""The size of the digest at the end of a packed state, in bytes."""

_VERSION = 1
_ROOM = 2**12
"""The maximum size of all packed states in a ledger together, in bytes."""
_ENTRY_NBYTES = 12
"""The size of a chunk's entry in the packed index, in bytes: 8 for its place, and 4 for its size."""
_EARLIEST = datetime(1, 1, 1, tzinfo=UTC).timestamp()
_LATEST = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
"""The limits of dates. A comparison with them also excludes NaN."""
_NO_FRAME_LEN = 2**62
"""A length of the frame that passes the checks of a header: packed states do not store the length."""

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Kept:
    """An entry of the ledger: a kept state.

    Parameters
    ----------
    name : str
        The name that the user has given.
    time : float
        The time of its creation, in seconds since 1970 (UTC).
    message : str
        The user's remark.
    attrs : bytes
        The user's attributes, encoded by `b2array.format.attributes`.
    generation : bytes
        The digest of the commit that made the state; it identifies the state.
    shape : tuple of int, optional
        The shape of the array; None for a frame without an array.
    place : int
        The start of the packed state, in bytes from the end of the header (contiguous), or the number in the name of
        its object (sparse).
    nbytes : int
        The size of the packed state, in bytes.
    digest : bytes
        The digest at the end of the packed state.
    suspect : bool
        Whether other software has changed the frame since, and may have overwritten chunks of this state.
    group : bytes
        The identity of the group whose snapshot includes this state; empty if no group needs the state.
    packed : bytes
        The packed state itself, if it is stored in the ledger (see `has_room`). In a contiguous frame, only if the
        frame has no chunks: then the trailer must directly follow the header.
    """

    name: str
    time: float
    message: str = ""
    attrs: bytes = b""
    generation: bytes = b""
    shape: tuple[int, ...] | None = None
    place: int = 0
    nbytes: int = 0
    digest: bytes = b""
    suspect: bool = False
    group: bytes = b""
    packed: bytes = b""

    @property
    def title(self) -> str:
        """The name of the state in messages: its own name, or the names of the group's snapshots that need it."""
        if self.group and self.message:
            return self.message
        return repr(self.name)

    def pack(self) -> list[Any]:
        """Return the entry as a value that msgpack supports."""
        return [
            self.name,
            self.time,
            self.message,
            self.attrs,
            self.generation,
            None if self.shape is None else list(self.shape),
            self.place,
            self.nbytes,
            self.digest,
            self.suspect,
            self.group,
            self.packed,
        ]

    @classmethod
    def unpack(cls, content: Any) -> Self:
        """Read an entry; FormatError if the value is not an entry."""
        if not isinstance(content, list) or len(content) < len(_KINDS):
            raise FormatError("expected an entry of the ledger of kept states, found something else")
        # Later versions may append values to an entry.
        values = content[: len(_KINDS)]
        pairs = zip(values, _KINDS, strict=True)
        if any(kind is not None and type(value) is not kind for value, kind in pairs):
            raise FormatError("expected an entry of the ledger of kept states, found something else")
        name, time, message, attrs, generation, shape, place, nbytes, digest, suspect, group, packed = values
        is_shape = isinstance(shape, list) and all(type(extent) is int and extent >= 0 for extent in shape)
        has_shape = is_shape or shape is None
        if not has_shape or place < 0 or nbytes < DIGEST_NBYTES:
            raise FormatError(f"expected place, size and shape of a kept state, found {place}, {nbytes} and {shape}")
        if not _EARLIEST <= time <= _LATEST:
            raise FormatError(f"expected the time of a kept state in seconds since 1970, found {time}")
        extents = None if shape is None else tuple(shape)
        return cls(name, time, message, attrs, generation, extents, place, nbytes, digest, suspect, group, packed)


_KINDS = (str, float, str, bytes, bytes, None, int, int, bytes, bool, bytes, bytes)
"""The types of an entry's values; None for a shape, which may be missing."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The kept states of a frame, the oldest first.

    From `floor` and `dead` follows the dead space in a contiguous file, without reading the kept states: before the
    place `floor`, in bytes from the end of the header, all except `dead` bytes are needed.

    Examples
    --------
    >>> ledger = Ledger((Kept("spin-up", 0.0, nbytes=16),), floor=100)
    >>> Ledger.unpack(ledger.pack()) == ledger, Ledger.unpack(None)
    (True, Ledger(entries=(), floor=0, dead=0))
    """

    entries: tuple[Kept, ...] = field(default=())
    floor: int = 0
    dead: int = 0

    @property
    def names(self) -> list[str]:
        """The names of the kept states."""
        return [entry.name for entry in self.entries]

    def find(self, name: str) -> Kept | None:
        """Return the entry with this name, or None."""
        named = [entry for entry in self.entries if entry.name == name]
        return named[0] if named else None

    def without(self, names: tuple[str, ...]) -> Self:
        """Return a ledger without the entries with these names."""
        entries = [entry for entry in self.entries if entry.name not in names]
        return replace(self, entries=tuple(entries))

    def suspect_all(self) -> Self:
        """Return a ledger that marks all states as suspect, because other software has changed the frame."""
        entries = [replace(entry, suspect=True) for entry in self.entries]
        return replace(self, entries=tuple(entries))

    def pack(self) -> bytes | None:
        """Return the ledger as bytes, or None for a ledger without entries."""
        if not self.entries:
            return None
        entries = [entry.pack() for entry in self.entries]
        content = [_VERSION, self.floor, self.dead, entries]
        packed: bytes = msgpack.packb(content, use_bin_type=True)
        return packed

    @classmethod
    def unpack(cls, buf: Buffer | None) -> Self:
        """Read a ledger. None and empty bytes stand for an empty ledger.

        FormatError says that the bytes are not a ledger, and UnsupportedError that a later version wrote it.
        """
        if not buf:
            return cls()
        try:
            content = msgpack.unpackb(buf, strict_map_key=False)
        except UNREADABLE:
            content = None
        if not isinstance(content, list) or len(content) < 4 or type(content[0]) is not int:
            raise FormatError("expected a ledger of kept states, found other bytes")
        version, floor, dead, entries = content[:4]
        if version != _VERSION:
            raise UnsupportedError(f"expected a ledger of kept states of version {_VERSION}, found version {version}")
        are_sizes = type(floor) is int and type(dead) is int and min(floor, dead) >= 0
        if not are_sizes or not isinstance(entries, list):
            raise FormatError("expected two sizes and a list of kept states in the ledger, found something else")
        ledger = cls(tuple(map(Kept.unpack, entries)), floor, dead)
        if len({*ledger.names}) < len(ledger.names):
            raise FormatError(f"expected a name for each kept state, found {ledger.names}")
        return ledger


def ledger_of(state: State) -> Ledger:
    """Return the ledger of a frame."""
    return _ledger(state.annotations.kept)


@lru_cache(maxsize=8)
def _ledger(packed: bytes | None) -> Ledger:
    return Ledger.unpack(packed)


def name_for_group(generation: bytes) -> str:
    """Return the name of a state that a frame keeps for snapshots of its group. No user can choose this name."""
    return f"\x1f{generation.hex()}"


def has_room(entries: Sequence[Kept], packed: bytes) -> bool:
    """Return whether a ledger has room for a packed state, which saves readers a request; else it needs an object.

    The room is limited, because every commit of a sparse frame or a group rewrites the ledger, and every reader reads
    it.
    """
    noted = sum(len(entry.packed) for entry in entries)
    return noted + len(packed) <= _ROOM


def object_name(number: int) -> str:
    """Return the name of the object with a kept state of a sparse frame.

    Examples
    --------
    >>> object_name(255)
    '00000000000000ff.b2kept'
    """
    return f"{number:016x}{KEPT}"


# One state.


def pack_state(state: State, header: bytes) -> bytes:
    """Pack a state as bytes: its header, its metalayers and its index. `state` has no codes in its index.

    The sizes of blocks are not stored: they would need most of the space, and save only a request.
    """
    annotations = replace(
        state.annotations,
        sizes=None,
        records=pack_records(state.records),
        kept=None,
        commit=None,
        header=None,
        recent=b"",
        group_commit=None,
        forks_of=b"",
    )
    layers = [[name, raw] for name, raw in state.frame.vlmetalayers if name != LAYER]
    layers.append([LAYER, frame.pack_vlmeta(annotations.pack())])
    content = {
        "v": _VERSION,
        "header": fingerprint.with_frame_len(header, 0),
        "layers": layers,
        "nchunks": state.frame.nchunks,
        "index": _pack_index(state),
    }
    packed: bytes = msgpack.packb(content, use_bin_type=True, unicode_errors="surrogateescape")
    return seal(packed)


def unpack_state(buf: Buffer, entry: Kept) -> State:
    """Read a state that `pack_state` packed.

    FormatError says that the bytes are damaged or belong to another state, and UnsupportedError that a later version
    wrote them.
    """
    packed = unseal(buf, entry.digest, f"the state {entry.name!r}")
    content = _unpack_content(packed)
    header = unpack_header(fingerprint.with_frame_len(content["header"], _NO_FRAME_LEN))
    offsets, sizes = _unpack_index(content["index"], content["nchunks"], header)
    described = frame.with_tail(
        header,
        offsets=offsets,
        vlmetalayers=tuple((name, raw) for name, raw in content["layers"]),
        frame_len=0,
        fingerprint_type=FINGERPRINT_128,
        fingerprint=entry.generation,
    )
    all_sizes = np.zeros((len(offsets), sizes_width(described)), np.uint32)
    all_sizes[:, 0] = sizes
    return parse(described).with_tables(all_sizes, None)


def seal(packed: bytes) -> bytes:
    """Append the digest of bytes to them."""
    return packed + _digest(packed)


def unseal(buf: Buffer, digest: bytes, what: str) -> bytes:
    """Return sealed bytes without their digest; FormatError, with `what` as their name, if the digest differs."""
    packed = bytes(buf[:-DIGEST_NBYTES])
    stored_digest = bytes(buf[-DIGEST_NBYTES:])
    if stored_digest != digest or _digest(packed) != digest:
        raise FormatError(f"expected {what} with the digest {digest.hex()}, found other bytes")
    return packed


def _digest(packed: bytes) -> bytes:
    return blake2b(packed, digest_size=DIGEST_NBYTES).digest()


def _unpack_content(packed: bytes) -> dict[str, Any]:
    """Return the parts of a packed state, after a check of their types: the digest shows damage, but not malice."""
    content: Any = None
    # If the bytes are unreadable, `content` remains None, and the check below rejects it.
    with suppress(*UNREADABLE):
        content = msgpack.unpackb(packed, unicode_errors="surrogateescape")
    if not isinstance(content, dict):
        raise FormatError("expected a kept state, found other bytes")
    if content.get("v") != _VERSION:
        raise UnsupportedError(f"expected a kept state of version {_VERSION}, found version {content.get('v')!r}")
    layers = content.get("layers")
    are_bytes = isinstance(content.get("header"), bytes) and isinstance(content.get("index"), bytes)
    if not are_bytes or not isinstance(layers, list) or type(content.get("nchunks")) is not int:
        raise FormatError("expected header, metalayers and index of a kept state, found something else")
    if not all(map(_is_layer, layers)):
        raise FormatError("expected names and contents of the metalayers of a kept state, found something else")
    return content


def _is_layer(layer: object) -> bool:
    return isinstance(layer, list) and list(map(type, layer)) == [str, bytes]


# The index, with the size of each chunk. Most chunks directly follow the previous chunk. So a place is stored as the
# distance from the expected place, which is usually zero. The bytes of the numbers are shuffled and compressed as one
# stream of zstd, which is decoded in a fraction of the time for a chunk.


def _pack_index(state: State) -> bytes:
    offsets = state.frame.offsets
    sizes = state.sizes[:, 0]
    relative = _relative(offsets, _steps(state.frame, sizes))
    table = np.empty((_ENTRY_NBYTES, offsets.size), np.uint8)
    table[:8] = _bytes_of(relative, "<i8")
    table[8:] = _bytes_of(sizes, "<u4")
    data = table.tobytes()
    return codecs.encode(CodecId.ZSTD, data) or data


def _unpack_index(
    packed: bytes,
    nchunks: int,
    header: Header,
) -> tuple[Int64Array, npt.NDArray[np.uint32]]:
    """Return the places and the sizes of the chunks."""
    expected = -(-header.nbytes // header.chunksize) if header.chunksize else nchunks
    if nchunks != expected or bool(nchunks) != bool(header.nbytes):
        raise FormatError(f"expected an index of {expected} chunks, found one of {nchunks}")
    limit = config.limits.index_nbytes
    nbytes = _ENTRY_NBYTES * nchunks
    if not 0 <= 8 * nchunks <= limit:
        raise FormatError(
            f"expected an index of at most {limit} bytes (config.limits.index_nbytes), found one of {8 * nchunks}"
        )
    data = packed if len(packed) == nbytes else codecs.decode(CodecId.ZSTD, packed, nbytes)
    table = np.frombuffer(data, np.uint8).reshape(_ENTRY_NBYTES, nchunks)
    sizes = _numbers_of(table[8:], "<u4").astype(np.uint32, copy=False)
    relative = _numbers_of(table[:8], "<i8").astype(np.int64, copy=False)
    offsets = _absolute(relative, _steps(header, sizes))
    index.check(offsets, None if header.frame_type == FrameType.SPARSE else header.cbytes)
    offsets.flags.writeable = False
    return offsets, sizes


def _bytes_of(numbers: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.uint8]:
    """Return one row with the first byte of each number, one row with the second byte of each, and so on."""
    items = np.ascontiguousarray(numbers, dtype)
    return items.view(np.uint8).reshape(items.size, items.itemsize).T


def _numbers_of(rows: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[Any]:
    items = np.ascontiguousarray(rows.T)
    return items.view(dtype)[:, 0]


def _steps(header: Header, sizes: npt.NDArray[np.uint32]) -> Int64Array:
    """Return for each chunk the distance from its start to the expected start of the next chunk."""
    if header.frame_type == FrameType.SPARSE:
        return np.ones(sizes.size, np.int64)
    nblocks = 0
    if header.chunksize > 0 and header.blocksize > 0:
        nblocks = -(-header.chunksize // header.blocksize)
    return sizes.astype(np.int64) + record_nbytes(nblocks)


def _relative(offsets: Int64Array, steps: Int64Array) -> Int64Array:
    stored = offsets >= 0
    places = offsets[stored]
    expected = np.zeros(places.size, np.int64)
    after = places + steps[stored]
    expected[1:] = after[:-1]
    relative = np.array(offsets, np.int64)
    relative[stored] = places - expected
    return relative


def _absolute(relative: Int64Array, steps: Int64Array) -> Int64Array:
    # The entries of chunks that are not stored are far below all distances.
    stored = relative > max(index.SPECIALS)
    offsets = np.array(relative, np.int64)
    distances = relative[stored]
    distances[1:] += steps[stored][:-1]
    offsets[stored] = np.cumsum(distances)
    return offsets
