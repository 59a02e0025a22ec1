"""The parts of a frame or a Bloscpack file: its chunks and their sizes, and every field around them.

Sources: "Blosc2 Contiguous Frame Format", sections Header, Chunks and Trailer; "Blosc Chunk Format", section Header;
"B2ND Metalayer Format".
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from b2array.bloscpack.blp_header import HEADER_FIELDS, META_FIELDS, META_HEADER_LEN, VERSION1_FIELDS, digest_size
from b2array.bloscpack.reader import Reader
from b2array.catalog.needs import needed_states, needs_of_all_groups
from b2array.codec.chunk import Context
from b2array.codec.chunk_header import FIELDS as CHUNK_FIELDS
from b2array.codec.chunk_header import ChunkHeader, HeaderField, Special
from b2array.config import HEADER_LEN
from b2array.display import text_tables
from b2array.errors import B2ArrayError, FormatError, UnsupportedError
from b2array.exchange.formats import holds_array
from b2array.format import b2nd, checksums, frame
from b2array.format.frame_header import FIXED_LEN, FrameType, Header
from b2array.format.frame_header import HEADER_FIELDS as FRAME_FIELDS
from b2array.format.ledger import ledger_of
from b2array.frame.fetch import fetch
from b2array.frame.kept_states import load_kept_states
from b2array.frame.revision import Revision
from b2array.frame.source import ChunkRequest, Location
from b2array.store.base import Listed, Store
from b2array.store.spans import Span

__all__ = [
    "ChunkSizes",
    "Field",
    "Survey",
    "chunk_map",
    "context_of",
    "fields",
    "frame_nbytes",
    "list_objects",
    "survey",
    "total_nbytes",
]

_WAVE = 1024
"""The number of chunks whose headers are read at a time."""

_SHOWN_NBYTES = 16
"""The maximum number of bytes shown from after a frame."""

_SHADES = "░▒▓█"
_MAP_COLUMNS = 64
_MAP_ROWS = 40


class ChunkSizes(NamedTuple):
    """The number, location and sizes in bytes of a chunk. `special` is "" if the chunk is stored in streams."""

    number: int
    offset: int | None
    file: str
    nbytes: int
    cbytes: int
    nblocks: int
    special: str
    filters: str = ""

    @property
    def ratio(self) -> float:
        """Uncompressed size over compressed size; 0 if nothing is stored."""
        return self.nbytes / self.cbytes if self.cbytes else 0.0


@dataclass(frozen=True)
class Survey:
    """Sizes in bytes of everything in a store, and the grid of its chunks.

    `frame` counts header, index and trailer, `live` chunks with their checksums, `kept` the data that only snapshots
    use, and `dead` the rest. `total` and `dead` are None if the frame's files cannot be listed.
    """

    chunks: tuple[ChunkSizes, ...]
    grid: tuple[int, ...]
    total: int | None
    frame: int
    live: int
    dead: int | None
    kept: int = 0

    def data(self) -> dict[str, Any]:
        """Return all sizes as JSON-compatible types."""
        coords: list[list[int]] = [[] for _ in self.chunks]
        if self.chunks and self.grid:
            numbers = np.arange(len(self.chunks))
            coords = np.transpose(np.unravel_index(numbers, self.grid)).tolist()
        chunks = []
        for each, place in zip(self.chunks, coords, strict=True):
            more = {"coords": place, "ratio": round(each.ratio, 2)}
            chunks.append(each._asdict() | more)
        return {
            "total": self.total,
            "frame": self.frame,
            "live": self.live,
            "kept": self.kept,
            "dead": self.dead,
            "grid": list(self.grid),
            "chunks": chunks,
        }

    def lines(self) -> Iterator[str]:
        """Yield sizes, ratios, dead space and the map of the grid as text."""
        rows = self._rows_of_chunks()
        if self.total is not None:
            rows["file"] = text_tables.nbytes(self.total)
        rows["live"] = text_tables.nbytes(self.live)
        rows["frame"] = text_tables.nbytes(self.frame)
        if self.kept:
            rows["snapshots"] = text_tables.nbytes(self.kept)
        rows["dead"] = "not known: the files cannot be listed"
        if self.dead is not None:
            share = f", {self.dead / self.total:.0%}" if self.dead and self.total else ""
            rows["dead"] = text_tables.nbytes(self.dead) + share
        yield from repr(text_tables.Info(rows)).splitlines()
        yield ""
        yield "what is left of each chunk: · nothing  ░ up to 25 %  ▒ 50 %  ▓ 75 %  █ more"
        yield from chunk_map(self.chunks, self.grid)

    def _rows_of_chunks(self) -> dict[str, Any]:
        stored = [each for each in self.chunks if each.offset is not None]
        nlost = sum(each.special == "lost" for each in self.chunks)
        number = f"{len(self.chunks)}, {len(stored)} of them stored"
        rows: dict[str, Any] = {"chunks": f"{number}, {nlost} lost" if nlost else number}
        if stored:
            rows["cbytes of a chunk"] = _range_text([each.cbytes for each in stored], ".0f")
            rows["ratio of a chunk"] = _range_text([each.ratio for each in stored], ".2f")
        used = Counter(each.filters for each in stored if each.filters)
        if used:
            counts = [f"{names}: {text_tables.count_text(n, 'chunk')}" for names, n in used.most_common()]
            rows["filters"] = "; ".join(counts)
        return rows


def _range_text(values: Sequence[float], form: str) -> str:
    middle = median(values)
    return f"{min(values):{form}} to {max(values):{form}}, median {middle:{form}}"


def survey(source: Revision | Reader) -> Survey:
    """Read the headers of all chunks and the sizes of the files."""
    if isinstance(source, Revision):
        return _survey_of_frame(source)
    return _survey_of_bloscpack(source)


def _survey_of_frame(revision: Revision) -> Survey:
    head = revision.frame
    lost = set(revision.state.annotations.lost)
    chunks: list[ChunkSizes] = []
    live: dict[Location, int] = {}  # several chunk numbers may refer to the same stored chunk
    for first in range(0, head.nchunks, _WAVE):
        numbers = range(first, min(first + _WAVE, head.nchunks))
        places = [None if n in lost else revision.locate(n) for n in numbers]
        heads = _heads(revision, [n for n in numbers if n not in lost], places)
        for n, place in zip(numbers, places, strict=True):
            if not isinstance(place, Location):
                kind = "lost" if place is None else place.name.lower()
                nbytes = head.chunk_nbytes(n) or 0
                chunks.append(ChunkSizes(n, None, "", nbytes, 0, 0, kind))
                continue
            header = heads[place]
            sizes = ChunkSizes(
                number=n,
                offset=place.start,
                file=place.name,
                nbytes=header.nbytes,
                cbytes=header.cbytes,
                nblocks=header.nblocks,
                special=_kind(header),
                filters=_filters(header),
            )
            chunks.append(sizes)
            record = 0
            if revision.state.has_checksums(n):
                # A chunk of one value has no blocks to check.
                nblocks = 0 if header.special else header.nblocks
                record = checksums.record_nbytes(nblocks)
            live[place] = header.cbytes + record
    own = frame_nbytes(head)
    live_nbytes = sum(live.values())
    files = list_objects(revision.store) if revision.sparse else None
    total = total_nbytes(revision, files)
    kept = _snapshots_nbytes(revision)
    # The remainder may be negative if another writer is removing files of a sparse frame at the same time.
    dead = None if total is None else max(0, total - own - live_nbytes - kept)
    grid: tuple[int, ...] = (head.nchunks,)
    if holds_array(head):
        grid = revision.state.require_layout().grid_shape or (1,)
    return Survey(tuple(chunks), grid, total, own, live_nbytes, dead, kept)


def _heads(
    revision: Revision,
    numbers: Sequence[int],
    places: Iterable[Location | Special | None],
) -> dict[Location, ChunkHeader]:
    """Read the headers of stored chunks, by location."""
    stored = [place for place in dict.fromkeys(places) if isinstance(place, Location)]
    spans = [Span(place.name, place.start, place.start + HEADER_LEN) for place in stored]
    try:
        views = revision.read(spans, clip=True)
        headers = map(ChunkHeader.unpack, views)
        return dict(zip(stored, headers, strict=True))
    except (B2ArrayError, OSError):
        fetch(revision, [ChunkRequest(n, (0,)) for n in numbers])  # raises the error that a read would raise
        raise


def _kind(header: ChunkHeader) -> str:
    if header.special:
        return header.special.name.lower()
    return "raw" if header.memcpyed else ""


def _snapshots_nbytes(revision: Revision) -> int:
    """Return the number of bytes that only snapshots use."""
    entries = ledger_of(revision.state).entries
    nbytes = sum(entry.nbytes for entry in entries if not entry.packed)
    seen = revision.frame.offsets
    states = load_kept_states(revision, entries)
    # If the group's list of snapshots is damaged, the member's own snapshots are still counted.
    with suppress(B2ArrayError):
        needs = needs_of_all_groups(revision.store)
        states += [state for _, state in needed_states(revision, needs)]
    for each in states:
        places, first = np.unique(each.frame.offsets, return_index=True)
        is_alone = (places >= 0) & ~np.isin(places, seen)
        alone = first[is_alone]
        sizes = each.state.sizes
        record = checksums.record_nbytes(each.state.nblocks)
        # The sizes are 32-bit, but their sum may need more bits.
        cbytes = sizes[alone, 0].astype(np.int64)
        nbytes += int(cbytes.sum()) + alone.size * record
        seen = np.concatenate([seen, places])
    return nbytes


def _filters(header: ChunkHeader) -> str:
    """Return the filters of a chunk in order, or "" if the chunk is not filtered."""
    if not header.has_streams:
        return ""
    slots = zip(header.filters, header.filters_meta, strict=True)
    return text_tables.filter_list(slots)


def _survey_of_bloscpack(f: Reader) -> Survey:
    sizes = []
    for n in range(f.nchunks):
        part = f.place(n)
        cbytes = len(f.get_chunk(n))
        sizes.append(ChunkSizes(n, part.start, "", part.nbytes, cbytes, 0, ""))
    digests = f.nchunks * digest_size(f.header.checksum)
    live = sum(each.cbytes for each in sizes) + digests
    head = f.first_chunk
    dead = max(0, f.cbytes - head - live)
    return Survey(tuple(sizes), (f.nchunks,), f.cbytes, head, live, dead)


def frame_nbytes(described: frame.Frame) -> int:
    """Return the total size of header, index and trailer, in bytes."""
    return described.header_len + described.frame_len - described.tail_start


def total_nbytes(revision: Revision, files: Mapping[str, Listed] | None) -> int | None:
    """Return the stored size of a frame, including dead space, or None if the store does not report it.

    `files` are the objects of a sparse frame, if the store can list them.
    """
    if revision.sparse:
        if files is None:
            return None
        # Names that begin with a dot are staged chunks and locks, which belong to no state.
        return sum(each.size for name, each in files.items() if not name.startswith("."))
    if revision.start:  # the frame is a part of a file
        return revision.frame.frame_len
    size = revision.store.stamp("").size
    return None if size < 0 else size


def context_of(described: Header) -> Context:
    """Return the context for decoding the chunks of a frame, as far as the header gives it."""
    raw = described.metalayer("b2nd")
    blocks = None
    if raw is not None:
        # Damaged metadata is reported elsewhere, and only some codecs need the blocks.
        with suppress(B2ArrayError):
            layout = b2nd.unpack(raw, chunksize=described.chunksize)
            blocks = layout.blocks
    return Context(described.codec, described.codec_meta, blocks)


def list_objects(store: Store) -> Mapping[str, Listed] | None:
    """Return the store's objects, or None if it cannot be listed, for example without permission."""
    try:
        return store.listing()
    except (OSError, UnsupportedError, NotImplementedError):
        return None


def chunk_map(chunks: Sequence[ChunkSizes], grid: Sequence[int]) -> Iterator[str]:
    """Draw the grid of chunks, with one character per chunk that shows how well it is compressed.

    Each line runs along the last dimension that has more than one chunk. Empty lines separate planes. A grid along a
    single dimension is wrapped like text.
    """
    grid = [n for n in grid if n != 1]
    if len(grid) < 2:
        yield from _wrap(chunks)
        return
    columns = grid[-1]
    plane = grid[-2]
    rows = prod(grid) // columns if columns else 0
    more = f" and {columns - _MAP_COLUMNS} more" if columns > _MAP_COLUMNS else ""
    for row in range(min(rows, _MAP_ROWS)):
        if row and row % plane == 0:
            yield ""
        first = row * columns
        last = first + min(columns, _MAP_COLUMNS)
        yield "".join(map(_symbol, chunks[first:last])) + more
    if rows > _MAP_ROWS:
        yield f"and {rows - _MAP_ROWS} more rows"


def _wrap(chunks: Sequence[ChunkSizes]) -> Iterator[str]:
    most = _MAP_ROWS * _MAP_COLUMNS
    symbols = "".join(map(_symbol, chunks[:most]))
    for first in range(0, len(symbols), _MAP_COLUMNS):
        yield symbols[first : first + _MAP_COLUMNS]
    if len(chunks) > most:
        yield f"and {len(chunks) - most} more"


def _symbol(sizes: ChunkSizes) -> str:
    if not sizes.cbytes or sizes.special not in ("", "raw"):
        return "·"
    share = sizes.cbytes / sizes.nbytes if sizes.nbytes else 1.0
    return _SHADES[min(3, int(4 * share))]


Row = tuple[str, int, str, str]
"""A field in a table: name, position, struct format and meaning."""


class Field(NamedTuple):
    """A field of a file: the part of the file, the start, bytes, name and value, and the meaning of the value."""

    part: str
    offset: int
    raw: bytes
    name: str
    value: Any
    meaning: str


def fields(source: Revision | Reader) -> Iterator[Field]:
    """Yield every field before and after the chunks, in the order of the file."""
    if isinstance(source, Revision):
        return _fields_of_frame(source)
    return _fields_of_bloscpack(source)


def _fields_of_frame(revision: Revision) -> Iterator[Field]:
    head = revision.frame
    header = _read(revision, 0, head.header_len)
    yield from _rows("header", header, 0, FRAME_FIELDS)
    yield from _layers("header", header, FIXED_LEN, head.metalayers, 0)
    start = head.tail_start
    stop = head.frame_len
    tail = _read(revision, start, stop)
    # Source: "Blosc2 Contiguous Frame Format", section Trailer: a frame ends with the trailer's length
    # and 18 bytes of fingerprint.
    (trailer_len,) = struct.unpack_from(">I", tail, len(tail) - 22)
    border = len(tail) - trailer_len
    # An empty frame has no index.
    if border:
        yield from _index(head, tail[:border], start)
    yield from _trailer(head, tail[border:], start + border)
    yield from _spare(revision, stop)


def _read(revision: Revision, start: int, stop: int) -> bytes:
    """Read a part of the frame's main file, at positions relative to the start of the frame."""
    span = Span(revision.name, revision.start + start, revision.start + stop)
    (view,) = revision.read([span])
    return bytes(view)


def _spare(revision: Revision, stop: int) -> Iterator[Field]:
    """Yield the bytes between the end of a frame and the end of its file, if there are any."""
    if revision.start:
        return
    nbytes = revision.store.stamp(revision.name).size - stop
    if nbytes > 0:
        last = stop + min(nbytes, _SHOWN_NBYTES)
        (raw,) = revision.store.read([Span(revision.name, stop, last)])
        meaning = "no part of the frame: room, or what a commit that did not end has left"
        yield Field("spare", stop, bytes(raw), "spare", f"{nbytes} bytes", meaning)


def _with_positions(table: Iterable[HeaderField]) -> Iterator[Row]:
    """Yield name, position, struct format and meaning of consecutive little-endian fields."""
    at = 0
    for field in table:
        code = f"<{field.format}"
        yield field.name, at, code, field.meaning
        at += struct.calcsize(code)


def _rows(part: str, buf: bytes, base: int, table: Iterable[Row]) -> Iterator[Field]:
    """Yield the fields of a table. `base` is the position of `buf` in the file."""
    for name, at, code, meaning in table:
        raw = buf[at : at + struct.calcsize(code)]
        (value,) = struct.unpack(code, raw)
        text = value
        if name == "magic":
            text = value.rstrip(b"\0").decode()
        elif isinstance(value, bytes):
            text = tuple(value)
        yield Field(part, base + at, raw, name, text, meaning)


# Source: "Blosc2 Contiguous Frame Format", section Header, metalayers: seven bytes end with the number of metalayers.
# Each metalayer then has a marker for its name, the name, a marker for an offset, and the offset. At the offset, a
# marker and a length, five bytes together, precede the content.
_COUNT_LEN = 7
_CONTENT_HEAD = 5


def _layers(
    part: str,
    buf: bytes,
    at: int,
    layers: Sequence[tuple[str, bytes]],
    base: int,
) -> Iterator[Field]:
    raw = buf[at : at + _COUNT_LEN]
    yield Field(part, base + at, raw, "metalayers", len(layers), "number of metalayers")
    at += _COUNT_LEN
    for name, content in layers:
        size = len(name.encode(errors="surrogateescape"))
        place = at + 2 + size
        raw = buf[place : place + 4]
        (offset,) = struct.unpack(">i", raw)
        yield Field(part, base + place, raw, f"offset of {name!r}", offset, "from the start of this part")
        start = base + offset + _CONTENT_HEAD
        meaning = _LAYERS.get(name, "a metalayer")
        yield Field(part, start, content, name, f"{len(content)} bytes", meaning)
        if name in ("b2nd", b2nd.TEXT):
            # The fields of an unreadable metalayer cannot be located; only its bytes are listed.
            with suppress(FormatError, UnsupportedError):
                yield from _array(part, name, start, content)
        at = place + 4


def _array(part: str, layer: str, start: int, content: bytes) -> Iterator[Field]:
    layout = b2nd.unpack_text(content) if layer == b2nd.TEXT else b2nd.unpack(content)
    yield Field(part, start + 1, content[1:2], f"{layer}.version", content[1], "version of the metalayer")
    yield Field(part, start + 2, content[2:3], f"{layer}.ndim", content[2], "number of dimensions")
    at = 3
    # Source: "Blosc2 NDim Array Format", section Metalayer: each extent is a marker byte, then 8 or 4 bytes.
    for name, extents, width in (
        ("shape", layout.shape, 9),
        ("chunks", layout.chunks, 5),
        ("blocks", layout.blocks, 5),
    ):
        stop = at + 1 + width * len(extents)
        yield Field(part, start + at, content[at:stop], f"{layer}.{name}", extents, "extents in items")
        at = stop
    at += 6
    yield Field(part, start + at, content[at:], f"{layer}.dtype", layout.dtype_text, "type of the items")


_LAYERS = {
    "b2nd": "shape, chunks, blocks and type of an array",
    "caterva": "shape, chunks and blocks of an array",
    b2nd.TEXT: "shape, chunks, blocks and type of an array of text",
    "batcharray": "how python-blosc2 reads the items",
    "b2array": "fill value, dimensions, checksums: b2array's own",
}


def _index(head: frame.Frame, buf: bytes, base: int) -> Iterator[Field]:
    length = ChunkHeader.unpack(buf).header_len
    rows = [row for row in _with_positions(CHUNK_FIELDS) if row[1] < length]
    yield from _rows("index", buf, base, rows)
    what = "file of the chunk" if head.frame_type == FrameType.SPARSE else "from the end of the header"
    # The offsets are compressed together in one chunk, so the bytes of a single offset are not in the file.
    for n in range(head.nchunks):
        where = head.entry(n)
        value = where.name.lower() if isinstance(where, Special) else where
        raw = np.int64(head.offsets[n]).tobytes()
        yield Field("index", base + length, raw, f"chunk {n}", value, what)


_FINGERPRINTS = {0: "none", 3: "b2array's checksum of header, index and trailer"}


def _trailer(head: frame.Frame, buf: bytes, base: int) -> Iterator[Field]:
    yield Field("trailer", base + 1, buf[1:2], "trailer_version", buf[1], "version of the trailer")
    yield from _layers("trailer", buf, 2, head.vlmetalayers, base)
    at = len(buf) - 23
    (size,) = struct.unpack_from(">I", buf, at + 1)
    raw = buf[at + 1 : at + 5]
    yield Field("trailer", base + at + 1, raw, "trailer_size", size, "bytes of the trailer")
    at += 6
    meaning = _FINGERPRINTS.get(head.fingerprint_type, "not known")
    yield Field("trailer", base + at, buf[at : at + 1], "fingerprint_type", buf[at], meaning)
    at += 1
    yield Field("trailer", base + at, buf[at:], "fingerprint", buf[at:].hex(), "names this state")


def _fields_of_bloscpack(f: Reader) -> Iterator[Field]:
    raw = f.head_bytes()
    entries = VERSION1_FIELDS if f.header.version == 1 else HEADER_FIELDS
    yield from _rows("header", raw, 0, _with_positions(entries))
    meta = f.meta_head
    at = f.header.length
    if meta is not None:
        yield from _rows("metadata", raw[at:], at, _with_positions(META_FIELDS))
        at += META_HEADER_LEN
        for name, nbytes, meaning in (
            ("metadata", meta.meta_comp_size, "their content"),
            ("room", meta.max_meta_size - meta.meta_comp_size, "for longer ones"),
            ("digest", digest_size(meta.checksum), "checksum of the metadata"),
        ):
            if nbytes:
                yield Field("metadata", at, raw[at : at + nbytes], name, f"{nbytes} bytes", meaning)
            at += nbytes
    nchunks = min(f.nchunks, f.nslots)
    # `frombuffer` rejects an empty buffer, even if no items are requested.
    starts = np.frombuffer(raw, "<i8", nchunks, at).tolist() if nchunks else ()
    for n, start in enumerate(starts):
        yield Field("offsets", at, raw[at : at + 8], f"chunk {n}", start, "where it begins, -1: not known")
        at += 8
    if at < len(raw):
        unused = f"{(len(raw) - at) // 8} times 8 bytes"
        yield Field("offsets", at, raw[at:], "room", unused, "for offsets of further chunks")
