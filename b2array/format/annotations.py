"""The metadata that b2array adds to a frame, in a variable-length metalayer that other readers ignore.

The metalayer stores the fill value, the names of the dimensions, the sizes of chunks and blocks, the numbers of lost
chunks, attributes without a separate metalayer, and the commit that wrote the frame. Every entry is optional. An entry
that this version cannot read counts as missing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self, get_args

import msgpack
import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.buffers import Buffer
from b2array.codec import chunk, decode, encode
from b2array.codec.chunk_header import ChunkHeader
from b2array.codec.cparams import METADATA, CParams
from b2array.config import HEADER_LEN
from b2array.errors import FormatError, UnsupportedError
from b2array.format import recent
from b2array.format.attributes import UNREADABLE
from b2array.grid.chunking import Access

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
"""One row per chunk: its compressed size, then the size of each block; for text, then its uncompressed size. A size of
0 is unknown."""
Records = npt.NDArray[np.uint32]
"""The checksum of each chunk's record of checksums; 0 if the record is missing or its checksum is unknown."""

LAYER = "b2array"
"""The name of the variable-length metalayer."""
MAX_SIZES_NBYTES = 2**20
"""The maximum size of the packed block sizes in the metalayer, in bytes."""

_VERSION = 1
_IDENTITY_NBYTES = 16
_FIELDS = {
    "identity": "identity",
    "fill": "fill",
    "dims": "dims",
    "dtype": "dtype",
    "next": "next",
    "attrs": "attrs",
    "lost": "lost",
    "sizes": "sizes",
    "cparams": "cparams",
    "records": "records",
    "commit": "commit",
    "header": "header",
    "recent": "recent",
    "group": "group_commit",
    "forks_of": "forks_of",
    "kept": "kept",
    "floor": "floor",
    "takeovers": "takeovers",
    "auto": "auto",
}
"""The fields by their keys in the metalayer."""
_MAPS = ("attrs", "cparams")
"""The fields that are maps in the metalayer."""
_MERGED = ("fill", "dims", "dtype", "group_commit", "floor", "auto", "unknown")
"""The fields that writers change. `plan` sets the fields of the commit; some other fields have special rules."""
_SIZES_CPARAMS = METADATA
# Only the zeros among checksums can be compressed.
_RECORDS_CPARAMS = CParams("lz4", clevel=1, filters=())
_MAX_CHUNK_SIZES_NBYTES = 16 * MAX_SIZES_NBYTES


class GroupCommit(NamedTuple):
    """A commit of a group, as recorded in a member: the group's identity, the number, and the member's path."""

    identity: str
    number: int
    path: str


@dataclass(frozen=True, slots=True)
class Annotations:
    r"""The content of the `b2array` metalayer.

    Parameters
    ----------
    fill : bytes, optional
        The fill value, as the bytes of one item of the array's type; for text of any length, as msgpack.
    dims : tuple of (str or None), optional
        The names of the dimensions.
    dtype : str, optional
        The name of the type, if NumPy has no such type and the frame stores only the size of the items.
    next : int, optional
        The first number that no file of a chunk has ever had (sparse frames).
    attrs : tuple of (str, bytes)
        Attributes without a separate metalayer, with values that `b2array.format.attributes` has encoded.
    lost : tuple of int
        The numbers of chunks whose data could not be saved.
    sizes : bytes, optional
        The sizes of chunks and blocks, packed by `pack_sizes`.
    cparams : tuple of (name, value)
        Parameters of `CParams` for which the header of a frame has no field.
    records : bytes, optional
        The checksums of records, packed by `pack_records`.
    commit : bytes, optional
        The digest of the commit that wrote the frame.
    header : bytes, optional
        A copy of the frame's header, to find changes by other software.
    recent : bytes
        The list of the last commits (see `b2array.format.recent`), in stores without locks.
    group_commit : (str, int, str), optional
        The last commit of a group that changed the frame: the identity of the group, the number of the commit, and the
        path of the frame in the group. The number is 0 if readers need not know it.
    forks_of : bytes
        The list of the last transactions whose forks were committed without them, as `b2array.format.recent` packs it.
    unknown : tuple of (key, value)
        Entries of later versions, which are preserved.
    identity : bytes, optional
        The identity of the frame, which no commit changes. A frame that is deleted and created again gets a new
        identity.
    kept : bytes, optional
        The ledger of kept states, packed by `b2array.format.ledger`.
    floor : int, optional
        Files of chunks with lower numbers may have been deleted since their numbers were used (in object stores).
    auto : str, optional
        Chunks and blocks were chosen for so few items that the first growth chooses them anew: the word for the kind of
        access for which it does, or "" for the default.
    takeovers : int
        The number of commits on top of a state by other software, which may have overwritten chunks of earlier states.
    foreign : bool
        Whether the metalayer has a later major version: then its content is ignored, and the frame must not be changed.

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
    forks_of: bytes = b""
    unknown: tuple[tuple[Any, Any], ...] = ()
    foreign: bool = False
    identity: bytes | None = None
    kept: bytes | None = None
    floor: int | None = None
    auto: str | None = None
    takeovers: int = 0

    def is_member(self, group: str, path: str) -> bool:
        """Return whether the annotations name this path, in the group with this identity, as the place of the frame."""
        noted = self.group_commit
        return noted is not None and (noted.identity, noted.path) == (group, path)

    @classmethod
    def unpack(cls, buf: Buffer, *, itemsize: int | None, ndim: int, nchunks: int) -> Self:
        """Read the content of the metalayer, without ever raising an error.

        Entries that do not fit the item size (in bytes; None for text of any length), the number of dimensions or the
        number of chunks are ignored.
        If another program wrote the metalayer, all of its content is ignored.
        """
        try:
            layer = msgpack.unpackb(buf, strict_map_key=False)
        except UNREADABLE:
            return cls()
        if not isinstance(layer, dict) or not _is_number(layer.get("v"), 1):
            return cls()
        # The frame is still readable; but a commit would lose the entries of the later version.
        if layer["v"] > _VERSION:
            return cls(foreign=True)
        get = layer.get
        packed = {key: value for key, value in layer.items() if isinstance(value, bytes)}
        unknown = [(key, value) for key, value in layer.items() if key != "v" and key not in _FIELDS]
        fill = packed.get("fill")
        dtype = get("dtype")
        return cls(
            fill=fill if fill is not None and itemsize in (None, len(fill)) else None,
            dims=_dims(get("dims"), ndim),
            dtype=dtype if isinstance(dtype, str) else None,
            next=_number(get("next")),
            attrs=_attrs(get("attrs")),
            lost=_lost(get("lost"), nchunks),
            sizes=packed.get("sizes"),
            cparams=_cparams(get("cparams")),
            records=packed.get("records"),
            commit=packed.get("commit"),
            header=packed.get("header"),
            recent=packed.get("recent", b""),
            group_commit=_group_commit(get("group")),
            forks_of=packed.get("forks_of", b""),
            unknown=tuple(unknown),
            identity=packed.get("identity") or None,
            kept=packed.get("kept") or None,
            floor=_number(get("floor")),
            auto=_access(get("auto")),
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
        """Return the annotations of a new frame, with a new identity."""
        return replace(self, identity=os.urandom(_IDENTITY_NBYTES))

    def with_commit_listed(self) -> Self:
        """Return annotations with their commit at the front of the list of the last commits."""
        return replace(self, recent=recent.with_commit(self.recent, self.commit or b""))

    def lists(self, other: Self) -> bool:
        """Return whether a commit is listed, so that these annotations belong to it or to a later commit on top."""
        return recent.has_commit(self.recent, other.commit or b"")


_DEFAULTS = {each.name: each.default for each in fields(Annotations)}


def _is_number(value: object, low: int) -> bool:
    # Compare types, because True is also an instance of int.
    return type(value) is int and value >= low


def _number(value: Any) -> int | None:
    """Return a value if it is a number of at least 0."""
    return value if _is_number(value, 0) else None


def _access(value: object) -> str | None:
    """Return a word for a kind of access, or "" for the default."""
    return value if isinstance(value, str) and value in ("", *get_args(Access)) else None


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
    """Return the parameters with a text as name and a plain value."""
    if not isinstance(cparams, dict):
        return ()
    plain = []
    for name, value in cparams.items():
        # msgpack turns tuples into lists, but parameters must be hashable.
        hashable = tuple(value) if isinstance(value, list) else value
        if isinstance(name, str) and isinstance(hashable, str | int | float | tuple):
            plain.append((name, hashable))
    return tuple(plain)


def merge(base: Annotations, ours: Annotations, theirs: Annotations) -> Annotations:
    """Merge the annotations of two writers, except the attributes. If both have changed an entry, our value wins."""
    changed = {}
    for name in _MERGED:
        value = getattr(ours, name)
        if value != getattr(base, name):
            changed[name] = value
    # A chunk that one of the writers has rewritten is no longer lost.
    written = set(base.lost) - set(ours.lost)
    newly_lost = set(ours.lost) - set(base.lost)
    lost = set(theirs.lost) - written | newly_lost
    return replace(
        theirs,
        **changed,
        lost=tuple(sorted(lost)),
        forks_of=recent.merge(base.forks_of, ours.forks_of, theirs.forks_of),
    )


def contradictions(base: Annotations, ours: Annotations, theirs: Annotations) -> list[str]:
    """Return the names of the entries that two writers have changed to different values.

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


def sizes_row(head: chunk.ChunkHead, width: int) -> Sizes:
    """Return the size of a chunk, then the sizes of its blocks, in bytes, in block order: a row of `width` columns.

    The blocks' sizes are 0 if the chunk has no streams or does not store its blocks in order. If the chunk has blocks
    of variable length, its uncompressed size follows.
    """
    row = np.zeros(width, np.uint32)
    row[0] = head.header.cbytes
    blocks = row[1:]
    if head.header.vl_blocks and width > 1:
        row[-1] = head.header.nbytes
        blocks = row[1:-1]
    # With several threads, C-Blosc2 stores the blocks in the order in which the threads finish.
    in_order = len(head.starts) == len(blocks) and (np.diff(head.starts) > 0).all()
    if head.header.has_streams and in_order:
        blocks[:] = head.stops - head.starts
    return row


def block_bounds(row: Sizes) -> npt.NDArray[np.int64] | None:
    """Compute the positions of a chunk's blocks from its size and their sizes; return None if sizes are unknown.

    Block n extends from item n to item n + 1 of the result, in bytes from the start of the chunk. The head of the chunk
    precedes the first block.

    Examples
    --------
    >>> block_bounds(np.array([100, 20, 30], np.uint32)).tolist()
    [50, 70, 100]
    """
    sizes = row[1:].astype(np.int64)
    first = int(row[0]) - int(sizes.sum())
    # The header precedes the first block, and so do the starts of the blocks, of 4 bytes each.
    least = HEADER_LEN + 4 * len(sizes)
    if not len(sizes) or not sizes.all() or first < least:
        return None
    ends = np.cumsum(sizes)
    return first + np.concatenate((np.zeros(1, np.int64), ends))


def pack_sizes(rows: Sizes) -> bytes | None:
    """Return rows of `sizes_row` as one Blosc2 chunk; None if the chunk would be larger than `MAX_SIZES_NBYTES`.

    The rows of chunks that are not stored are zeros. Without sizes of blocks, the result may be 16 times as large: like
    the index, it has one number per chunk.
    """
    # This many numbers are never compressed to the permitted size, so do not spend time on them.
    if rows.nbytes > 64 * MAX_SIZES_NBYTES:
        return None
    packed = encode.encode(np.ascontiguousarray(rows, "<u4"), typesize=4, cparams=_SIZES_CPARAMS)
    has_blocks = rows.shape[1] > 1
    most = MAX_SIZES_NBYTES if has_blocks else _MAX_CHUNK_SIZES_NBYTES
    return packed if len(packed) <= most else None


def pack_fitting_sizes(sizes: Sizes) -> bytes | None:
    """Pack the sizes of chunks and blocks, or of chunks alone if all are too large; None if even these are."""
    if not sizes.any():
        return None
    return pack_sizes(sizes) or pack_sizes(sizes[:, :1])


def unpack_sizes(buf: Buffer, nchunks: int, nblocks: int) -> Sizes | None:
    """Return the rows that `pack_sizes` packed, or None if they do not fit the array; never raise."""
    numbers = _unpack_numbers(buf, nchunks * (1 + nblocks))
    return None if numbers is None else numbers.reshape(nchunks, 1 + nblocks)


def unpack_fitting_sizes(buf: Buffer, nchunks: int, width: int) -> Sizes | None:
    """Return the rows, of `width` numbers or of one, that `pack_fitting_sizes` packed; None if unreadable."""
    # Bytes 4 to 7 of a chunk are the uncompressed size of its data.
    is_short = int.from_bytes(buf[4:8], "little") == 4 * nchunks
    return unpack_sizes(buf, nchunks, 0 if is_short else width - 1)


def pack_records(records: Records) -> bytes | None:
    """Return the checksums of the chunks' records as one Blosc2 chunk, or None if no chunk has a record."""
    if not records.any():
        return None
    return encode.encode(np.ascontiguousarray(records, "<u4"), typesize=4, cparams=_RECORDS_CPARAMS)


def unpack_records(buf: Buffer, nchunks: int) -> Records | None:
    """Return the checksums that `pack_records` packed, or None if they do not fit the array; never raise."""
    return _unpack_numbers(buf, nchunks)


def _unpack_numbers(buf: Buffer, count: int) -> npt.NDArray[np.uint32] | None:
    nbytes = 4 * count
    try:
        header = ChunkHeader.unpack(buf)
        if header.nbytes != nbytes or header.cbytes != len(buf) or nbytes > config.limits.metadata_nbytes:
            return None
        # Compression rarely makes checksums smaller.
        content = memoryview(buf)[header.header_len :] if header.memcpyed else decode.decode(buf)
        numbers = np.frombuffer(content, "<u4")
    except (FormatError, UnsupportedError):
        return None
    return numbers.astype(np.uint32, copy=False)
