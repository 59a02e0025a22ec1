"""What b2array adds to a frame, in a variable-length metalayer that other readers ignore.

Fill value, names of the dimensions, sizes of chunks and blocks, chunks that are lost, attributes without a separate
metalayer, and the commit that wrote the frame. Every entry may be absent. An entry that this version cannot read counts
as absent.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import msgpack
import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.buffers import Buffer
from b2array.codec import chunk, decode, encode
from b2array.codec.cparams import METADATA, CParams
from b2array.codec.header import ChunkHeader
from b2array.config import HEADER_LEN
from b2array.errors import FormatError, UnsupportedError
from b2array.format import recent
from b2array.format.attributes import UNREADABLE

__all__ = [
    "LAYER",
    "MAX_SIZES_NBYTES",
    "Annotations",
    "GroupCommit",
    "Records",
    "Sizes",
    "block_bounds",
    "merge",
    "pack_fitting_sizes",
    "pack_records",
    "pack_sizes",
    "sizes_row",
    "unpack_fitting_sizes",
    "unpack_records",
    "unpack_sizes",
]

Sizes = npt.NDArray[np.uint32]
"""One row a chunk: its compressed size, then the size of each block. 0 where a size is not known."""
Records = npt.NDArray[np.uint32]
"""The checksum of each chunk's record of checksums. 0 where it is missing or unknown."""

LAYER = "b2array"
"""Name of the variable-length metalayer."""
MAX_SIZES_NBYTES = 2**20
"""Larger packed block sizes are not stored in the metalayer."""

_VERSION = 1
_IDENTITY_NBYTES = 16
_FIELDS = {
    "id": "identity",
    "fill": "fill",
    "dims": "dims",
    "dtype": "dtype",
    "next": "next",
    "attrs": "attrs",
    "lost": "lost",
    "sizes": "sizes",
    "cparams": "cparams",
    "records": "records",
    "chain": "commit",
    "header": "header",
    "recent": "recent",
    "group": "group_commit",
    "job": "forks_of",
    "deleted": "deleted",
    "kept": "kept",
    "floor": "floor",
    "takeovers": "takeovers",
}
"""The fields by their keys in the metalayer."""
_MAPS = ("attrs", "cparams")
"""Fields that are maps in the metalayer."""
_MERGED = ("fill", "dims", "dtype", "group_commit", "forks_of", "deleted", "floor", "unknown")
"""Fields that writers change. `plan` sets the fields of the commit anew, and some others are merged in their own
way."""
_SIZES_CPARAMS = METADATA
# Only the zeros among checksums can be compressed.
_RECORDS_CPARAMS = CParams("lz4", clevel=1, filters=())
_MAX_CHUNK_SIZES_NBYTES = 16 * MAX_SIZES_NBYTES


class GroupCommit(NamedTuple):
    """A commit of a group, as a member of it notes it: the group's identity, a number, and the member's path."""

    identity: str
    number: int
    path: str


@dataclass(frozen=True, slots=True)
class Annotations:
    r"""The content of the `b2array` metalayer.

    Parameters
    ----------
    fill : bytes, optional
        The fill value: one item in the bytes of the array's type.
    dims : tuple of (str or None), optional
        Names of the dimensions.
    dtype : str, optional
        Name of the type, where NumPy has none and the frame only knows the size of the items.
    next : int, optional
        First number of a chunk's file that was never used (sparse frames).
    attrs : tuple of (str, bytes)
        Attributes without a separate metalayer; the values as `b2array.format.attributes` encodes them.
    lost : tuple of int
        Chunks whose data could not be saved.
    sizes : bytes, optional
        What `pack_sizes` returned.
    cparams : tuple of (name, value)
        Parameters of `CParams` that a frame's header has no field for.
    records : bytes, optional
        What `pack_records` returned.
    commit : bytes, optional
        The digest of the commit that wrote the frame.
    header : bytes, optional
        A copy of the frame's header, to find changes by other software.
    recent : bytes
        The last commits, as `b2array.format.recent` lists them; in stores without locks.
    group_commit : (str, int, str), optional
        The last commit of a group that changed the frame: the identity of the group, the number of the commit, and the
        path of the frame in the group. The number is 0 if readers need not know it.
    forks_of : bytes, optional
        The identity of the transaction whose forks were committed last without it.
    deleted : bool
        Whether this frame only marks the place of a member that was deleted from a group.
    unknown : tuple of (key, value)
        Entries of later versions. They are kept.
    identity : bytes, optional
        Names the frame, from its making on: one that is deleted and made again has another. Every commit keeps it.
    kept : bytes, optional
        The ledger of kept states, as `b2array.format.kept` packs it.
    floor : int, optional
        Files of chunks with lower numbers may have been deleted since their numbers were used (in object stores).
    takeovers : int
        How many commits have gone on from a state by other software, which may have written over chunks of earlier
        states.
    foreign : bool
        The metalayer has a later major version: nothing was read from it, and the frame must not be written.

    Examples
    --------
    >>> annotations = Annotations(fill=b"\0\0", dims=("x", None))
    >>> Annotations.unpack(annotations.pack(), itemsize=2, ndim=2, nchunks=1) == annotations
    True
    """

    fill: bytes | None = None
    dims: tuple[str | None, ...] | None = None
    dtype: str | None = None
    next: int | None = None
    attrs: tuple[tuple[str, bytes], ...] = ()
    lost: tuple[int, ...] = ()
    sizes: bytes | None = None
    cparams: tuple[tuple[str, Any], ...] = ()
    records: bytes | None = None
    commit: bytes | None = None
    header: bytes | None = None
    recent: bytes = b""
    group_commit: GroupCommit | None = None
    forks_of: bytes | None = None
    deleted: bool = False
    unknown: tuple[tuple[Any, Any], ...] = ()
    foreign: bool = False
    identity: bytes | None = None
    kept: bytes | None = None
    floor: int | None = None
    takeovers: int = 0

    def is_member(self, group: str, path: str) -> bool:
        """Return whether the frame notes that it is at a path in the group of an identity."""
        noted = self.group_commit
        return noted is not None and (noted.identity, noted.path) == (group, path)

    @classmethod
    def unpack(cls, buf: Buffer, *, itemsize: int, ndim: int, nchunks: int) -> Self:
        """Read the content of the metalayer; never fails.

        It ignores entries that do not fit the item size (in bytes), the number of dimensions or the number of chunks,
        and the whole content if it is not b2array's.
        """
        try:
            layer = msgpack.unpackb(buf, strict_map_key=False)
        except UNREADABLE:
            return cls()
        if not isinstance(layer, dict) or not _is_number(layer.get("v"), 1):
            return cls()
        # Reading goes on without it; a commit would lose what the later version has noted.
        if layer["v"] > _VERSION:
            return cls(foreign=True)
        get = layer.get
        packed = {key: value for key, value in layer.items() if isinstance(value, bytes)}
        unknown = [(key, value) for key, value in layer.items() if key != "v" and key not in _FIELDS]
        fill = packed.get("fill")
        dtype = get("dtype")
        return cls(
            fill=fill if fill is not None and len(fill) == itemsize else None,
            dims=_dims(get("dims"), ndim),
            dtype=dtype if isinstance(dtype, str) else None,
            next=_number(get("next")),
            attrs=_attrs(get("attrs")),
            lost=_lost(get("lost"), nchunks),
            sizes=packed.get("sizes"),
            cparams=_cparams(get("cparams")),
            records=packed.get("records"),
            commit=packed.get("chain"),
            header=packed.get("header"),
            recent=packed.get("recent", b""),
            group_commit=_group_commit(get("group")),
            forks_of=packed.get("job"),
            deleted=get("deleted") is True,
            unknown=tuple(unknown),
            identity=packed.get("id") or None,
            kept=packed.get("kept") or None,
            floor=_number(get("floor")),
            takeovers=_number(get("takeovers")) or 0,
        )

    def pack(self) -> bytes:
        """Return the content of the metalayer; raise UnsupportedError if it came from a later major version."""
        if self.foreign:
            raise UnsupportedError("the frame was written by a later version of b2array, which this one cannot follow")
        layer: dict[Any, Any] = {"v": _VERSION}
        for key, name in _FIELDS.items():
            value = getattr(self, name)
            if value != _DEFAULTS[name]:
                layer[key] = dict(value) if name in _MAPS else value
        layer |= dict(self.unknown)
        packed: bytes = msgpack.packb(layer, use_bin_type=True)
        return packed

    def with_new_identity(self) -> Self:
        """Return the annotations of a frame that is made now."""
        return replace(self, identity=os.urandom(_IDENTITY_NBYTES))

    def with_commit_listed(self) -> Self:
        """Return annotations that list their own commit before the ones that they list already."""
        return replace(self, recent=recent.with_commit(self.recent, self.commit or b""))

    def lists(self, other: Self) -> bool:
        """Return whether a commit is listed: these annotations belong to it, or to a commit on top of it."""
        return recent.has_commit(self.recent, other.commit or b"")


_DEFAULTS = {each.name: each.default for each in fields(Annotations)}


def _is_number(value: object, low: int) -> bool:
    # By type, since True is an integer as well.
    return type(value) is int and value >= low


def _number(value: Any) -> int | None:
    """Return a value if it is a number of at least 0."""
    return value if _is_number(value, 0) else None


def _lost(value: object, nchunks: int) -> tuple[int, ...]:
    if not isinstance(value, list):
        return ()
    return tuple([n for n in value if _is_number(n, 0) and n < nchunks])


def _group_commit(value: object) -> GroupCommit | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    identity, number, path = value
    if isinstance(identity, str) and _is_number(number, 0) and isinstance(path, str):
        return GroupCommit(identity, number, path)
    return None


def _dims(value: object, ndim: int) -> tuple[str | None, ...] | None:
    if not isinstance(value, list) or len(value) != ndim:
        return None
    if any(not isinstance(dim, str | None) for dim in value):
        return None
    return tuple(value)


def _attrs(attrs: object) -> tuple[tuple[str, bytes], ...]:
    if not isinstance(attrs, dict):
        return ()
    named = [(name, raw) for name, raw in attrs.items() if isinstance(name, str)]
    return tuple((name, raw) for name, raw in named if isinstance(raw, bytes))


def _cparams(cparams: object) -> tuple[tuple[str, Any], ...]:
    """Return the parameters that have a name and a plain value."""
    if not isinstance(cparams, dict):
        return ()
    plain = []
    for name, value in cparams.items():
        # msgpack makes lists of tuples, and parameters are compared and hashed.
        hashable = tuple(value) if isinstance(value, list) else value
        if isinstance(name, str) and isinstance(hashable, str | int | float | tuple):
            plain.append((name, hashable))
    return tuple(plain)


def merge(base: Annotations, ours: Annotations, theirs: Annotations) -> Annotations:
    """Merge the annotations of two writers, without attributes. Where both have changed an entry, ours wins."""
    changed = {}
    for name in _MERGED:
        value = getattr(ours, name)
        if value != getattr(base, name):
            changed[name] = value
    # A chunk that one of the writers has written again is not lost any more.
    written = set(base.lost) - set(ours.lost)
    newly_lost = set(ours.lost) - set(base.lost)
    lost = set(theirs.lost) - written | newly_lost
    return replace(theirs, **changed, lost=tuple(sorted(lost)))


def contradictions(base: Annotations, ours: Annotations, theirs: Annotations) -> list[str]:
    """Name the entries that two writers have changed to different values.

    Examples
    --------
    >>> a, b = (Annotations(dims=dims) for dims in (("x",), ("y",)))
    >>> contradictions(Annotations(), a, b), contradictions(a, a, b), contradictions(Annotations(), a, a)
    (['dims'], [], [])
    """
    names = []
    for name in _MERGED:
        before = getattr(base, name)
        our = getattr(ours, name)
        their = getattr(theirs, name)
        both_changed = before not in (our, their)
        if both_changed and our != their:
            names.append(name)
    return names


def sizes_row(head: chunk.ChunkHead, nblocks: int) -> Sizes:
    """Return the size of a chunk, then the size of each of its `nblocks` blocks, in bytes, in block order.

    The blocks' sizes are 0 if the chunk has no streams or does not store its blocks in order.
    """
    row = np.zeros(1 + nblocks, np.uint32)
    row[0] = head.header.cbytes
    # C-Blosc2 with several threads stores blocks in the order in which they are done.
    in_order = len(head.starts) == nblocks and (np.diff(head.starts) > 0).all()
    if head.header.has_streams and in_order:
        row[1:] = head.stops - head.starts
    return row


def block_bounds(row: Sizes) -> npt.NDArray[np.int64] | None:
    """Compute from a row of sizes where the blocks of a chunk are; None if the sizes do not tell.

    Block n is at bytes ``[n]`` to ``[n + 1]`` from the start of the chunk; before the first lies the chunk's head.

    Examples
    --------
    >>> block_bounds(np.array([100, 20, 30], np.uint32)).tolist()
    [50, 70, 100]
    """
    sizes = row[1:].astype(np.int64)
    first = int(row[0]) - int(sizes.sum())
    # Before the first block stand the header and 4 bytes a block that say where it starts.
    least = HEADER_LEN + 4 * len(sizes)
    if not len(sizes) or not sizes.all() or first < least:
        return None
    ends = np.cumsum(sizes)
    return first + np.concatenate((np.zeros(1, np.int64), ends))


def pack_sizes(rows: Sizes) -> bytes | None:
    """Return rows of `sizes_row` as one Blosc2 chunk, or None if that is larger than `MAX_SIZES_NBYTES`.

    Chunks that are not stored have zeros. Without sizes of blocks the result may be 16 times as large: like the index,
    it has one number a chunk.
    """
    # Compressing takes time, and so many numbers never become that much smaller.
    if rows.nbytes > 64 * MAX_SIZES_NBYTES:
        return None
    packed = encode.encode(np.ascontiguousarray(rows, "<u4"), typesize=4, cparams=_SIZES_CPARAMS)
    has_blocks = rows.shape[1] > 1
    most = MAX_SIZES_NBYTES if has_blocks else _MAX_CHUNK_SIZES_NBYTES
    return packed if len(packed) <= most else None


def pack_fitting_sizes(sizes: Sizes) -> bytes | None:
    """Pack sizes of chunks and blocks; only of chunks if all take too much room; None if even these do."""
    if not sizes.any():
        return None
    return pack_sizes(sizes) or pack_sizes(sizes[:, :1])


def unpack_sizes(buf: Buffer, nchunks: int, nblocks: int) -> Sizes | None:
    """Return the rows that `pack_sizes` packed, or None if they do not fit the array; never fails."""
    numbers = _unpack_numbers(buf, nchunks * (1 + nblocks))
    return None if numbers is None else numbers.reshape(nchunks, 1 + nblocks)


def unpack_fitting_sizes(buf: Buffer, nchunks: int, width: int) -> Sizes | None:
    """Return what `pack_fitting_sizes` packed: rows of `width` numbers or of one; None if neither fits; never fails."""
    # Bytes 4 to 7 of a chunk say how long its data are.
    is_short = int.from_bytes(buf[4:8], "little") == 4 * nchunks
    return unpack_sizes(buf, nchunks, 0 if is_short else width - 1)


def pack_records(records: Records) -> bytes | None:
    """Return the checksums of the chunks' records as one Blosc2 chunk, or None if no chunk has a record."""
    if not records.any():
        return None
    return encode.encode(np.ascontiguousarray(records, "<u4"), typesize=4, cparams=_RECORDS_CPARAMS)


def unpack_records(buf: Buffer, nchunks: int) -> Records | None:
    """Return what `pack_records` packed, or None if it does not fit the array; never fails."""
    return _unpack_numbers(buf, nchunks)


def _unpack_numbers(buf: Buffer, count: int) -> npt.NDArray[np.uint32] | None:
    nbytes = 4 * count
    try:
        header = ChunkHeader.unpack(buf)
        if header.nbytes != nbytes or header.cbytes != len(buf) or nbytes > config.limits.metadata_nbytes:
            return None
        # Checksums are rarely shorter when they are compressed.
        content = memoryview(buf)[header.header_len :] if header.memcpyed else decode.decode(buf)
        numbers = np.frombuffer(content, "<u4")
    except (FormatError, UnsupportedError):
        return None
    return numbers.astype(np.uint32, copy=False)
