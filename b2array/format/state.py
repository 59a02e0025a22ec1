"""`State`: a frame and its metadata, parsed once.

Frame and layout are parsed when the frame is opened; annotations, sizes of blocks and attributes when they are first
used. A commit makes the next state from this one, without parsing the bytes that it writes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from b2array import config
from b2array.codec import decode, encode
from b2array.codec.cparams import AUTO, BOUNDS, CParams
from b2array.errors import FormatError, LimitError, UnsupportedError, warn
from b2array.format import b2nd, dtypes, frame
from b2array.format.annotations import (
    LAYER,
    Annotations,
    Records,
    Sizes,
    pack_sizes,
    unpack_fitting_sizes,
    unpack_records,
)
from b2array.format.attributes import decode_attr
from b2array.format.b2nd import GEOMETRIES, TEXT
from b2array.format.frame import Frame
from b2array.format.frame_header import Header
from b2array.format.metalayers import MAX_LAYERS, MAX_NAME_NBYTES, MAX_OWN_LAYERS, Layers
from b2array.format.strings import BATCHES, LENGTHS, pack_batches
from b2array.grid import chunking
from b2array.grid.chunking import Access
from b2array.grid.layout import MAX_NDIM, Layout
from b2array.grid.text_chunks import automatic_text, average_nbytes

__all__ = [
    "State",
    "check_count",
    "choose_layout",
    "copy_table",
    "count_sized_blocks",
    "cparams_to_note",
    "find_changed_chunks",
    "future_part",
    "known_text",
    "layers_with",
    "parse",
    "reshape",
    "sizes_width",
    "unpack_annotations",
    "with_index",
    "with_layout",
    "with_text_nbytes",
]

_LARGE = 2**22
"""The minimum size of a table whose copies skip runs of zeros, in bytes."""
_STRETCH = 2**15
"""The number of rows to copy or skip at once."""
_N = TypeVar("_N", bound=np.generic)
_PLACES = {"offsets", "cbytes", "frame_type"}
"""The fields of a frame on which the places of its chunks depend."""
_SIZES_LIMIT = 2**22
"""The maximum number of entries in a table of block sizes, which would otherwise exceed its size limit when packed."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A frame and its parsed metadata.

    `layout` describes the array in the frame; if the items are arrays, their dimensions are added to the shape, as in
    NumPy. The layout is None if the frame has no array, or an unreadable one; then `require_layout` raises the error.
    """

    frame: Frame
    layout: Layout | None
    _annotations: Annotations | None = None
    _sizes: Sizes | None = None
    _records: Records | None = None
    _attrs: dict[str, bytes] = field(default_factory=dict)

    def require_layout(self) -> Layout:
        """Return the layout of the array; FormatError or UnsupportedError tell why there is no layout."""
        return self.layout or _layout_of(self.frame, self.annotations)

    @property
    def annotations(self) -> Annotations:
        """The annotations of b2array; empty if the frame has no annotations that this version can read."""
        annotations = self._annotations
        if annotations is None:
            annotations = _annotations_of(self.frame)
            # Another thread may compute the same value at the same time, which does no harm.
            object.__setattr__(self, "_annotations", annotations)
        return annotations

    @property
    def cparams(self) -> CParams:
        """The parameters for new chunks; raises UnsupportedError if a codec, a filter or a parameter does not fit."""
        named, noted = self.frame.cparams, self.annotations.cparams
        return _complete(named, noted) if noted else named

    @property
    def sizes(self) -> Sizes:
        """The sizes of chunks and their blocks, one row per chunk; unknown sizes are zeros."""
        sizes = self._sizes
        if sizes is None:
            sizes = _unpack_sizes(self.frame, self.annotations)
            object.__setattr__(self, "_sizes", sizes)
        return sizes

    @property
    def records(self) -> Records:
        """The checksum of each chunk's record of checksums; unknown checksums are zeros."""
        records = self._records
        if records is None:
            records = _unpack_records(self.frame, self.annotations)
            object.__setattr__(self, "_records", records)
        return records

    @property
    def nblocks(self) -> int:
        """The number of blocks in a chunk whose sizes are noted."""
        return count_sized_blocks(self.frame)

    def has_checksums(self, n: int) -> bool:
        """Return whether a record of checksums must follow chunk `n`."""
        if self.records[n]:
            return True
        # If the frame lists no records, every chunk with a known size must have one.
        return self.annotations.records is None and bool(self.sizes[n, 0])

    def have_checksums(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return `has_checksums` for many chunks."""
        is_listed = self.records[numbers] != 0
        if self.annotations.records is not None:
            return np.asarray(is_listed)
        return np.asarray(is_listed | (self.sizes[numbers, 0] != 0))

    def attr(self, name: str) -> bytes | None:
        """Return an attribute in its encoded form, or None if it does not exist."""
        content = self._attrs.get(name)
        if content is None:
            raw = None if name == LAYER else self.frame.vlmetalayer(name)
            if raw is None:
                content = dict(self.annotations.attrs).get(name)
            else:
                content = frame.unpack_vlmeta(raw)
            if content is not None:
                self._attrs[name] = content
        return content

    @property
    def attr_names(self) -> list[str]:
        """The names of the attributes: first of attributes in separate metalayers, then of the others."""
        own = dict(self.frame.vlmetalayers)
        own.pop(LAYER, None)
        names = {**own, **dict(self.annotations.attrs)}
        if TEXT in dict(self.frame.metalayers):
            names.pop(LENGTHS, None)
        return list(names)

    def attrs(self) -> dict[str, bytes]:
        """Return all attributes in their encoded form."""
        return {name: self.attr(name) or b"" for name in self.attr_names}

    def with_attr(self, name: str, content: bytes | None) -> State:
        """Set or remove an attribute; store it in a separate metalayer if there is room, else in the annotations."""
        layers = self.frame.vlmetalayers
        others = tuple(layer for layer in layers if layer[0] != name or name == LAYER)
        attrs = tuple(entry for entry in self.annotations.attrs if entry[0] != name)
        has_layer = len(others) < len(layers)
        if content is None:
            layers = others
        elif has_layer:
            new = (name, frame.pack_vlmeta(content))
            layers = tuple(new if layer[0] == name else layer for layer in layers)
        elif _fits(name) and sum(key != LAYER for key, _ in others) < MAX_OWN_LAYERS - 1:
            layers = (*layers, (name, frame.pack_vlmeta(content)))
        else:
            layers = others
            attrs = (*attrs, (name, content))
        return replace(
            self,
            frame=replace(self.frame, vlmetalayers=layers),
            _annotations=replace(self.annotations, attrs=attrs),
            _attrs={},
        )

    def with_annotations(self, annotations: Annotations) -> State:
        """Return a state with other annotations, whose attributes and type must be the same as before."""
        return replace(self, _annotations=annotations)

    def with_frame(self, **fields: Any) -> State:
        """Return a state whose frame has other values in these fields."""
        changed = replace(self.frame, **fields)
        # The places of chunks do not affect the metadata, so the parsed values remain valid.
        is_moved = fields.keys() <= _PLACES and changed.nchunks == self.frame.nchunks
        layout = self.layout if is_moved else _readable_layout(changed, self._annotations)
        return replace(self, frame=changed, layout=layout)

    def with_tables(self, sizes: Sizes | None, records: Records | None) -> State:
        """Return a state with other sizes and checksums of records; for None, they are read from the annotations."""
        return replace(self, _sizes=sizes, _records=records)

    def without_index(self, limit: int) -> tuple[Frame, bytes]:
        """Return the frame without its index and without packed sizes of more than `limit` bytes, and the index.

        The index is returned as a chunk. The function `with_index` does the reverse.
        """
        layers = self.frame.vlmetalayers
        other = self._with_short_sizes(limit)
        if other is not None:
            short = frame.pack_vlmeta(other.pack())
            layers = tuple((name, short if name == LAYER else raw) for name, raw in layers)
        offsets = self.frame.offsets
        index = encode.encode(offsets.astype("<i8").tobytes(), typesize=8)
        thin = replace(self.frame, vlmetalayers=layers, offsets=offsets[:0], packed_index=None)
        return thin, index

    def _with_short_sizes(self, limit: int) -> Annotations | None:
        """Return annotations with sizes of at most `limit` bytes; None if the frame's annotations need no change."""
        # Bytes 4 to 7 of a chunk are the uncompressed size of its data. The data is usually short enough.
        layer = self.frame.vlmetalayer(LAYER) or b""
        layer_nbytes = int.from_bytes(layer[4:8], "little")
        if self._sizes is None and layer_nbytes <= limit:
            return None
        noted = self.annotations.sizes
        if noted is not None:
            return replace(self.annotations, sizes=None) if len(noted) > limit else None
        # A kept state stores the sizes in its index.
        packed = pack_sizes(self.sizes[:, :1]) if self.sizes.any() else None
        if packed is None or len(packed) > limit:
            return None
        return replace(self.annotations, sizes=packed)


def _fits(name: str) -> bool:
    """Return whether the name of an attribute can be the name of a metalayer."""
    nbytes = len(name.encode(errors="surrogateescape"))
    return name != LAYER and "\0" not in name and nbytes <= MAX_NAME_NBYTES


def parse(described: Frame, annotations: Annotations | None = None) -> State:
    """Parse the metadata of a frame; `annotations` replaces the annotations in the frame."""
    return State(described, _readable_layout(described, annotations), annotations)


def with_index(thin: Frame, index: bytes, annotations: Annotations | None = None) -> State:
    """Return the state that `State.without_index` took apart; `annotations` replaces the annotations in the frame."""
    offsets = decode.decode(index).view("<i8").astype(np.int64, copy=False)
    return parse(replace(thin, offsets=offsets), annotations)


def future_part(described: Frame) -> str | None:
    """Return the name of a part with a later version than b2array supports, so that it must not write; else None."""
    if described.trailer_version > frame.TRAILER_VERSION:
        return f"a trailer of version {described.trailer_version} (known is {frame.TRAILER_VERSION})"
    layers = dict(described.metalayers)
    for name in GEOMETRIES:
        layer = layers.get(name)
        if layer is not None and b2nd.version_of(layer) > b2nd.VERSION:
            return f"a metalayer {name!r} of version {b2nd.version_of(layer)} (known is {b2nd.VERSION})"
    return None


def cparams_to_note(cparams: CParams) -> tuple[tuple[str, Any], ...]:
    """Return the names and values of parameters for which the header has no fields."""
    names = [name for name in BOUNDS if getattr(cparams, name) is not None]
    if cparams.filters == AUTO:
        names.append("filters")
        if cparams.filters_meta:
            names.append("filters_meta")
    return tuple((name, getattr(cparams, name)) for name in names)


@lru_cache(maxsize=64)
def _complete(cparams: CParams, noted: tuple[tuple[str, Any], ...]) -> CParams:
    """Return the parameters of a header, completed from annotations; unchanged if the annotations are invalid."""
    more = {name: value for name, value in noted if name in (*BOUNDS, "filters", "filters_meta")}
    if more.get("filters") == AUTO:
        more.setdefault("filters_meta", ())
    try:
        return replace(cparams, **more)
    except (TypeError, ValueError):
        return cparams


def _annotations_of(described: Frame) -> Annotations:
    raw = described.vlmetalayer(LAYER)
    if raw is None:
        return Annotations()
    try:
        content = frame.unpack_vlmeta(raw)
    except (FormatError, UnsupportedError):
        return Annotations()
    annotations = unpack_annotations(content, described, described.nchunks)
    # Other software may have rewritten chunks, or moved other chunks to their numbers.
    return annotations if described.is_ours else replace(annotations, lost=())


def unpack_annotations(content: bytes, described: Header, nchunks: int) -> Annotations:
    """Read the annotations of a frame with this header, and this many chunks; never raise an error."""
    layers = dict(described.metalayers)
    array = layers.get("b2nd") or layers.get("caterva") or layers.get(TEXT) or b""
    ndim = array[2] if len(array) > 2 else -1
    itemsize = None if TEXT in layers else described.typesize
    return Annotations.unpack(content, itemsize=itemsize, ndim=ndim, nchunks=nchunks)


def _readable_layout(described: Frame, annotations: Annotations | None) -> Layout | None:
    try:
        return _layout_of(described, annotations)
    except (FormatError, UnsupportedError):
        return None


def _declare_layout(described: Frame) -> Layout:
    layers = described.metalayers
    if described.metalayer(b2nd.CACHE) is not None:
        _require_complete(described)
        layers = tuple((name, raw) for name, raw in layers if name != b2nd.CACHE)
    return b2nd.layout_of(layers, chunksize=described.chunksize, typesize=described.typesize)


def _require_complete(described: Frame) -> None:
    """Raise UnsupportedError if a frame that caches another array lacks some of its chunks or blocks."""
    # Source: the metalayers of a `blosc2.Proxy`: one bit for each block (in older versions for each chunk), which is
    # set if the block is present; and a mark that a writer sets before it changes chunks, and removes afterwards.
    if described.vlmetalayer("proxy-dirty") is not None:
        raise UnsupportedError(
            f"python-blosc2 caches another array here (the metalayer {b2nd.CACHE!r} says so), and a writer is at work"
            " or was killed, so no chunk can be trusted; remove the cache, or let python-blosc2 fetch the chunks again"
        )
    mask = _note_in(described, "proxy-fetched-blocks")
    per_chunk = _note_in(described, "proxy-fetched-bpc")
    what = "blocks"
    if mask is None:
        mask = _note_in(described, "proxy-fetched")
        per_chunk = 1
        what = "chunks"
    total = described.nchunks * max(1, per_chunk if type(per_chunk) is int else 1)
    octets = np.frombuffer(mask if isinstance(mask, bytes) else b"", np.uint8)
    bits = np.unpackbits(octets, bitorder="little")
    there = int(bits[:total].sum())
    if mask is None or there < total:
        raise UnsupportedError(
            f"python-blosc2 caches another array here (the metalayer {b2nd.CACHE!r} says so), and has only {there} of "
            f"{total} {what} so far; Proxy.fetch() of python-blosc2 completes the cache"
        )


def _note_in(described: Frame, name: str) -> Any:
    chunk = described.vlmetalayer(name)
    return None if chunk is None else decode_attr(frame.unpack_vlmeta(chunk))


def _layout_of(described: Frame, annotations: Annotations | None) -> Layout:
    layout = _declare_layout(described)
    is_raw = layout.dtype.kind == "V" and layout.dtype.names is None and layout.dtype.subdtype is None
    if is_raw:
        notes = annotations or _annotations_of(described)
        layout = _with_named_dtype(layout, notes.dtype)
    nchunks = described.nchunks
    if layout.is_text:
        if not ((described.vl_blocks and described.variable_chunks) or not nchunks):
            raise FormatError("expected blocks of variable length in an array of text, found others")
        if layout.nchunks != nchunks:
            raise FormatError(
                f"expected {layout.nchunks} batches of text for the shape {layout.shape}, found {nchunks}: other "
                "software has added or removed some; b2array.open_schunk still reads them"
            )
        return layout
    if layout.nchunks != nchunks:
        raise FormatError(f"expected {layout.nchunks} chunks for the shape {layout.shape}, found {nchunks}")
    if nchunks and described.chunksize != layout.chunk_nbytes:
        raise FormatError(f"expected chunks of {layout.chunk_nbytes} bytes, found {described.chunksize}")
    if layout.dtype.subdtype is None:
        return layout
    base, inner = layout.dtype.subdtype
    if layout.ndim + len(inner) > MAX_NDIM:
        raise UnsupportedError(f"{layout.ndim} dimensions of items of shape {inner}: at most {MAX_NDIM} are possible")
    return replace(
        layout,
        shape=layout.shape + inner,
        chunks=layout.chunks + inner,
        blocks=layout.blocks + inner,
        dtype=base,
    )


def _with_named_dtype(layout: Layout, name: str | None) -> Layout:
    """Replace the type of raw items by the type that the annotations name."""
    dtype = None if name is None else dtypes.extension_dtype(name)
    if dtype is None or dtype.itemsize != layout.itemsize:
        return layout
    return replace(layout, dtype=dtype)


def count_sized_blocks(described: Frame) -> int:
    """Return the number of blocks in each chunk whose sizes are stored."""
    if TEXT in dict(described.metalayers):
        layout = _readable_layout(described, None)
        nblocks = 0 if layout is None else layout.nblocks
    elif described.chunksize <= 0 or described.blocksize <= 0 or described.vl_blocks:
        return 0
    else:
        nblocks = -(-described.chunksize // described.blocksize)
    return nblocks if described.nchunks * (1 + nblocks) <= _SIZES_LIMIT else 0


def sizes_width(described: Frame) -> int:
    """Return the number of columns in the table of sizes: for text, the last one has the uncompressed sizes."""
    return 1 + count_sized_blocks(described) + (TEXT in dict(described.metalayers))


def with_text_nbytes(state: State) -> State:
    """Return a state of an array of text whose header has the uncompressed size of all chunks; others are unchanged."""
    described, layout = state.frame, state.layout
    if layout is None or not layout.is_text:
        return state
    nbytes = int(state.sizes[:, -1].sum(dtype=np.int64))
    if not state.sizes[:, -1].all():
        # Other software has written some of the chunks, or there are too many chunks to note their sizes.
        nbytes = max(nbytes, described.nbytes, 1)
    return replace(state, frame=replace(described, nbytes=nbytes))


def _unpack_sizes(described: Frame, annotations: Annotations) -> Sizes:
    sizes = np.zeros((described.nchunks, sizes_width(described)), np.uint32)
    # If other software wrote last, the sizes may belong to other chunks.
    if annotations.sizes is not None and described.is_ours:
        # Large tables omit the sizes of blocks.
        noted = unpack_fitting_sizes(annotations.sizes, *sizes.shape)
        if noted is not None:
            copy_into(sizes[:, : noted.shape[1]], noted)
    return sizes


def _unpack_records(described: Frame, annotations: Annotations) -> Records:
    # If other software wrote last, the records may belong to other chunks.
    if annotations.records is not None and described.is_ours:
        noted = unpack_records(annotations.records, described.nchunks)
        if noted is not None:
            return copy_table(noted)
    return np.zeros(described.nchunks, np.uint32)


def copy_table(table: npt.NDArray[_N]) -> npt.NDArray[_N]:
    """Copy a table with one row per chunk. Long runs of zeros use no memory in the copy."""
    if table.nbytes < _LARGE:
        return table.copy()
    copy = np.zeros(table.shape, table.dtype)
    copy_into(copy, table)
    return copy


def copy_into(copy: npt.NDArray[_N], table: npt.NDArray[_N]) -> None:
    """Copy the rows of a table into a table of zeros. Long runs of zeros are skipped, so they use no memory."""
    for start in range(0, len(table), _STRETCH):
        rows = table[start : start + _STRETCH]
        if rows.any():
            copy[start : start + _STRETCH] = rows


def layers_with(layers: Layers, annotations: Annotations, url: str) -> Layers:
    """Put annotations into their metalayer, if there is room; LimitError if attributes would be lost."""
    others = tuple(layer for layer in layers if layer[0] != LAYER)
    if len(others) >= MAX_LAYERS:
        if annotations.attrs:
            names = ", ".join(repr(name) for name, _ in annotations.attrs)
            raise LimitError(f"{url} has {len(others)} variable-length metalayers: no room for {names}")
        if annotations.kept:
            raise LimitError(f"{url} has {len(others)} variable-length metalayers: no room for the list of snapshots")
        warn(f"{url} has {len(others)} variable-length metalayers: no room for b2array's own")
        return others
    return (*others, (LAYER, frame.pack_vlmeta(annotations.pack())))


def find_changed_chunks(was: State, now: State, *, moved: bool) -> set[int] | None:
    """Return the numbers of chunks that differ between two states with equally many chunks; None if unknown.

    With `moved`, chunks may have moved between the states, so their places are not compared.
    """
    before = was.frame.offsets
    after = now.frame.offsets
    differ = was.records != now.records
    if moved:
        # Chunks that are not stored have special entries in the index.
        before = np.minimum(before, 0)
        after = np.minimum(after, 0)
        if _has_unproven(before, was.records) or _has_unproven(after, now.records):
            return None
    return set(np.flatnonzero(differ | (before != after)).tolist())


def _has_unproven(places: npt.NDArray[np.int64], records: Records) -> bool:
    """Return whether any stored chunk has no checksum to compare."""
    return bool(((places == 0) & (records == 0)).any())


def check_count(layout: Layout) -> None:
    """Raise LimitError if there are more chunks than an index can hold."""
    most = config.limits.index_nbytes // 8
    if layout.nchunks > most:
        raise LimitError(
            f"a shape of {layout.shape} in chunks of {layout.chunks} makes {layout.nchunks} chunks, "
            f"an index holds {most}"
        )


def reshape(state: State, shape: tuple[int, ...]) -> State:
    """Return a state whose metalayer and layout have another shape.

    The index and the size of the data still describe the old shape. Chunks and blocks do not change, with one
    exception: python-blosc2 gives arrays without items chunks with an extent of 0; when such an array grows, new chunks
    and blocks are chosen. The number of dimensions and the extents of items that are arrays cannot change.
    """
    layout = state.require_layout()
    if len(shape) != layout.ndim:
        raise ValueError(f"the new shape must have {layout.ndim} dimensions, not {len(shape)}: {shape}")
    if any(extent < 0 for extent in shape):
        raise ValueError(f"negative dimensions are not allowed: {shape}")
    outer = _count_outer(state)
    if shape[outer:] != layout.shape[outer:]:
        raise ValueError(f"the last {layout.ndim - outer} dimensions are those of the items, which cannot be resized")
    new = replace(layout, shape=shape) if _has_chunks(layout, shape) else choose_layout(state, shape)
    return with_layout(state, new)


def _has_chunks(layout: Layout, shape: tuple[int, ...]) -> bool:
    axes = zip(shape, layout.chunks, layout.blocks, strict=True)
    return all(chunk and block for n, chunk, block in axes if n)


def _count_outer(state: State) -> int:
    """Return the number of dimensions without the dimensions of items that are arrays."""
    inner = _declare_layout(state.frame).dtype.shape
    return state.require_layout().ndim - len(inner)


def choose_layout(
    state: State,
    shape: tuple[int, ...],
    access: Access | None = "planes",
    chunks: Mapping[int, int] | None = None,
    text_nbytes: int = 0,
) -> Layout:
    """Return a layout of a shape, with chunks and blocks that are chosen anew; `chunks` has extents by axis.

    `text_nbytes` is the average size of text in bytes; 0 for the average of the text that there is.
    """
    layout = state.require_layout()
    outer = _count_outer(state)
    inner = shape[outer:]
    wanted: list[int | str] = ["auto"] * outer
    for axis, length in (chunks or {}).items():
        wanted[axis] = length
    if layout.is_text:
        nbytes = text_nbytes or average_nbytes(*known_text(state))
        cut, within = automatic_text(shape, nbytes, chunks=wanted, access=access)
    else:
        cut, within = chunking.automatic(shape[:outer], layout.itemsize, chunks=wanted, inner=inner, access=access)
    return replace(layout, shape=shape, chunks=cut, blocks=within)


def known_text(state: State) -> tuple[int, int]:
    """Return the bytes of the chunks of text whose sizes are stored, and the most items that these chunks can have."""
    layout = state.require_layout()
    # Zeros are unknown sizes.
    sizes = state.sizes[:, -1]
    nitems = min(math.prod(layout.shape), int(np.count_nonzero(sizes)) * math.prod(layout.chunks))
    return int(sizes.sum(dtype=np.int64)), nitems


def with_layout(state: State, new: Layout) -> State:
    """Return a state with another shape, chunks or blocks; its index and the size of its data stay as they are."""
    described = state.frame
    layout = state.require_layout()
    check_count(new)
    # Chunks of text differ in size.
    if not layout.is_text and (new.chunks, new.blocks) != (layout.chunks, layout.blocks):
        described = replace(described, chunksize=new.chunk_nbytes, blocksize=new.block_nbytes)
    outer = _count_outer(state)
    outers = tuple(part[:outer] for part in (new.shape, new.chunks, new.blocks))
    layers = []
    for name, raw in described.metalayers:
        content = b2nd.with_extents(raw, *outers) if name in GEOMETRIES else raw
        if layout.is_text and name == BATCHES:
            content = pack_batches(new)
        layers.append((name, content))
    return replace(state, frame=replace(described, metalayers=tuple(layers)), layout=new)
