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

from b2array.bloscpack.header import HEADER_FIELDS, META_FIELDS, META_HEADER_LEN, VERSION1_FIELDS, digest_size
from b2array.bloscpack.reader import Reader
from b2array.codec.chunk import Context
from b2array.codec.header import FIELDS as CHUNK_FIELDS
from b2array.codec.header import ChunkHeader, HeaderField, Special
from b2array.commit.pins import pinned_states, pins_of
from b2array.config import HEADER_LEN
from b2array.display import tables
from b2array.errors import B2ArrayError, FormatError, UnsupportedError
from b2array.exchange.formats import holds_array
from b2array.format import b2nd, checksums, frame
from b2array.format.header import FIXED_LEN, FrameType, Header
from b2array.format.header import HEADER_FIELDS as FRAME_FIELDS
from b2array.format.kept import ledger_of
from b2array.frame.fetch import fetch
from b2array.frame.snapshot import Snapshot, load_kept_states
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
"""Number of chunks to look at together."""

_SHOWN_NBYTES = 16
"""Number of bytes after a frame to show."""

_SHADES = "░▒▓█"
_MAP_COLUMNS, _MAP_ROWS = 64, 40


class ChunkSizes(NamedTuple):
    """A chunk: its number, its place, and its sizes in bytes. `special` is "" if it is stored in streams."""

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

    `frame` counts header, index and trailer, `live` chunks with their checksums, `kept` what only snapshots hold, and
    `dead` the rest. `total` and `dead` are None if the frame's files cannot be listed.
    """

    chunks: tuple[ChunkSizes, ...]
    grid: tuple[int, ...]
    total: int | None
    frame: int
    live: int
    dead: int | None
    kept: int = 0

    def data(self) -> dict[str, Any]:
        """Return all sizes in types that JSON has."""
        coords = np.unravel_index(np.arange(len(self.chunks)), self.grid) if self.chunks and self.grid else ()
        return {
            "total": self.total,
            "frame": self.frame,
            "live": self.live,
            "kept": self.kept,
            "dead": self.dead,
            "grid": list(self.grid),
            "chunks": [
                each._asdict() | {"coords": [int(axis[n]) for axis in coords], "ratio": round(each.ratio, 2)}
                for n, each in enumerate(self.chunks)
            ],
        }

    def lines(self) -> Iterator[str]:
        """Yield sizes, ratios, dead space and the map of the grid as text."""
        stored = [each for each in self.chunks if each.offset is not None]
        lost = sum(each.special == "lost" for each in self.chunks)
        rows: dict[str, Any] = {
            "chunks": f"{len(self.chunks)}, {len(stored)} of them stored" + f", {lost} lost" * bool(lost)
        }
        if stored:
            for name, values in (("cbytes", [each.cbytes for each in stored]), ("ratio", [s.ratio for s in stored])):
                middle = median(values)
                form = ".2f" if name == "ratio" else ".0f"
                rows[f"{name} of a chunk"] = f"{min(values):{form}} to {max(values):{form}}, median {middle:{form}}"
        used = Counter(each.filters for each in stored if each.filters)
        if used:
            rows["filters"] = "; ".join(f"{names}: {tables.count_text(n, 'chunk')}" for names, n in used.most_common())
        if self.total is not None:
            rows["file"] = tables.nbytes(self.total)
        rows["live"] = tables.nbytes(self.live)
        rows["frame"] = tables.nbytes(self.frame)
        rows |= {"snapshots": tables.nbytes(self.kept)} if self.kept else {}
        rows["dead"] = "not known: the files cannot be listed"
        if self.dead is not None:
            share = f", {self.dead / self.total:.0%}" if self.dead and self.total else ""
            rows["dead"] = tables.nbytes(self.dead) + share
        yield from repr(tables.Info(rows)).splitlines()
        yield ""
        yield "what compression leaves of each chunk: · nothing  ░ up to 25 %  ▒ 50 %  ▓ 75 %  █ more"
        yield from chunk_map(self.chunks, self.grid)


def survey(source: Snapshot | Reader) -> Survey:
    """Read the headers of all chunks and the sizes of the files."""
    return _survey_of_frame(source) if isinstance(source, Snapshot) else _survey_of_bloscpack(source)


def _survey_of_frame(revision: Snapshot) -> Survey:
    head = revision.frame
    lost = set(revision.state.annotations.lost)
    chunks: list[ChunkSizes] = []
    live: dict[Location, int] = {}  # several chunk numbers may stand for the same stored chunk
    for first in range(0, head.nchunks, _WAVE):
        numbers = range(first, min(first + _WAVE, head.nchunks))
        places = [None if n in lost else revision.locate(n) for n in numbers]
        stored = [place for place in dict.fromkeys(places) if isinstance(place, Location)]
        spans = [Span(place.name, place.start, place.start + HEADER_LEN) for place in stored]
        try:
            views = revision.read(spans, clip=True)
            heads = {at: ChunkHeader.unpack(view) for at, view in zip(stored, views, strict=True)}
        except (B2ArrayError, OSError):
            fetch(revision, [ChunkRequest(n, (0,)) for n in numbers if n not in lost])  # raises what a read does
            raise
        for n, place in zip(numbers, places, strict=True):
            if isinstance(place, Location):
                header = heads[place]
                kind = header.special.name.lower() if header.special else "raw" if header.memcpyed else ""
                chunks.append(
                    ChunkSizes(
                        n, place.start, place.name, header.nbytes, header.cbytes, header.nblocks, kind, _filters(header)
                    )
                )
                nblocks = 0 if header.special else header.nblocks
                record = checksums.record_nbytes(nblocks) if revision.state.has_checksums(n) else 0
                live[place] = header.cbytes + record
            else:
                kind = "lost" if place is None else place.name.lower()
                chunks.append(ChunkSizes(n, None, "", head.chunk_nbytes(n) or 0, 0, 0, kind))
    own, nbytes = frame_nbytes(head), sum(live.values())
    total = total_nbytes(revision, list_objects(revision.store) if revision.sparse else None)
    kept = _snapshots_nbytes(revision)
    dead = None if total is None else max(0, total - own - nbytes - kept)
    grid = revision.state.require_layout().grid_shape or (1,) if holds_array(head) else (head.nchunks,)
    return Survey(tuple(chunks), grid, total, own, nbytes, dead, kept)


def _snapshots_nbytes(revision: Snapshot) -> int:
    """Return how many bytes only snapshots hold."""
    entries = ledger_of(revision.state).entries
    nbytes = sum(entry.nbytes for entry in entries if not entry.packed)
    seen = revision.frame.offsets
    states = load_kept_states(revision, entries)
    with suppress(B2ArrayError):  # a damaged list of the group's snapshots hides nothing else
        states += [state for _, state in pinned_states(revision, pins_of(revision.store))]
    for each in states:
        places, first = np.unique(each.frame.offsets, return_index=True)
        alone = first[(places >= 0) & ~np.isin(places, seen)]
        sizes = each.state.sizes
        nbytes += int(sizes[alone, 0].astype(np.int64).sum()) + alone.size * checksums.record_nbytes(sizes.shape[1] - 1)
        seen = np.concatenate([seen, places])
    return nbytes


def _filters(header: ChunkHeader) -> str:
    """Return the filters of a chunk in their order; "" if none of its bytes were filtered."""
    if not header.has_streams:
        return ""
    slots = zip(header.filters, header.filters_meta, strict=True)
    return tables.filter_list(slots)


def _survey_of_bloscpack(f: Reader) -> Survey:
    sizes = []
    for n in range(f.nchunks):
        part = f.place(n)
        cbytes = len(f.get_chunk(n))
        sizes.append(ChunkSizes(n, part.start, "", part.nbytes, cbytes, 0, ""))
    live = sum(each.cbytes for each in sizes) + f.nchunks * digest_size(f.header.checksum)
    head = f.first_chunk
    return Survey(tuple(sizes), (f.nchunks,), f.cbytes, head, live, max(0, f.cbytes - head - live))


def frame_nbytes(described: frame.Frame) -> int:
    """Return the size of header, index and trailer."""
    return described.header_len + described.frame_len - described.tail_start


def total_nbytes(revision: Snapshot, files: Mapping[str, Listed] | None) -> int | None:
    """Return the size of a frame as it is stored, dead space included; None if the store does not tell it.

    `files` are the objects of a sparse frame, if the store can list them.
    """
    if revision.sparse:
        return None if files is None else sum(each.size for name, each in files.items() if not name.startswith("."))
    size = revision.frame.frame_len if revision.start else revision.store.stamp("").size
    return None if size < 0 else size


def context_of(described: Header) -> Context:
    """Return what the chunks of a frame need to be decoded, as far as the header tells it."""
    raw, blocks = described.metalayer("b2nd"), None
    if raw is not None:
        # Damaged metadata are reported elsewhere, and only some codecs need the blocks.
        with suppress(B2ArrayError):
            blocks = b2nd.unpack(raw, chunksize=described.chunksize).blocks
    return Context(described.codec, described.codec_meta, blocks)


def list_objects(store: Store) -> Mapping[str, Listed] | None:
    """Return the store's objects, or None if it cannot be listed, for example without permission."""
    try:
        return store.listing()
    except (OSError, UnsupportedError, NotImplementedError):
        return None


def chunk_map(chunks: Sequence[ChunkSizes], grid: Sequence[int]) -> Iterator[str]:
    """Draw the grid of chunks, with one character per chunk that shows its compressed share of its size.

    Each line runs along the last dimension that has more than one chunk. Empty lines separate planes. A grid along one
    dimension alone is a text that goes on in the next line.
    """
    grid = [n for n in grid if n != 1]
    if len(grid) < 2:
        yield from _wrap(chunks)
        return
    columns, plane = grid[-1], grid[-2]
    rows = prod(grid) // columns if columns else 0
    for row in range(min(rows, _MAP_ROWS)):
        if row and row % plane == 0:
            yield ""
        line = "".join(_symbol(each) for each in chunks[row * columns : row * columns + min(columns, _MAP_COLUMNS)])
        yield line + f" and {columns - _MAP_COLUMNS} more" * (columns > _MAP_COLUMNS)
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


class Field(NamedTuple):
    """A field of a file: the part that it is in, its start, bytes, name and value, and what the value means."""

    part: str
    offset: int
    raw: bytes
    name: str
    value: Any
    meaning: str


def fields(source: Snapshot | Reader) -> Iterator[Field]:
    """Yield every field before and after the chunks, in the order of the file."""
    return _fields_of_frame(source) if isinstance(source, Snapshot) else _fields_of_bloscpack(source)


def _fields_of_frame(revision: Snapshot) -> Iterator[Field]:
    head = revision.frame
    header = bytes(revision.read([Span(revision.name, revision.start, revision.start + head.header_len)])[0])
    yield from _rows("header", header, 0, FRAME_FIELDS)
    yield from _layers("header", header, FIXED_LEN, head.metalayers, 0)
    start, stop = head.tail_start, head.frame_len
    tail = bytes(revision.read([Span(revision.name, revision.start + start, revision.start + stop)])[0])
    (trailer_len,) = struct.unpack_from(">I", tail, len(tail) - 22)
    border = len(tail) - trailer_len
    if border:
        yield from _index(head, tail[:border], start)
    yield from _trailer(head, tail[border:], start + border)
    yield from _spare(revision, stop)


def _spare(revision: Snapshot, stop: int) -> Iterator[Field]:
    """Yield the bytes after a frame that fills its file, if there are any."""
    if revision.start:
        return
    nbytes = revision.store.stamp(revision.name).size - stop
    if nbytes > 0:
        (raw,) = revision.store.read([Span(revision.name, stop, stop + min(nbytes, _SHOWN_NBYTES))])
        meaning = "no part of the frame: room, or what a commit that did not end has left"
        yield Field("spare", stop, bytes(raw), "spare", f"{nbytes} bytes", meaning)


def _with_positions(table: Iterable[HeaderField]) -> Iterator[tuple[str, int, str, str]]:
    """Yield name, position, struct format and meaning of little-endian fields that follow each other without gaps."""
    at = 0
    for field in table:
        yield field.name, at, f"<{field.format}", field.meaning
        at += struct.calcsize(f"<{field.format}")


def _rows(
    part: str,
    buf: bytes,
    base: int,
    table: Iterable[tuple[str, int, str, str]],
) -> Iterator[Field]:
    """Yield the fields of a table: name, position in `buf`, struct format, meaning. `buf` begins at `base`."""
    for name, at, code, meaning in table:
        raw = buf[at : at + struct.calcsize(code)]
        (value,) = struct.unpack(code, raw)
        text = value.rstrip(b"\0").decode() if name == "magic" else tuple(value) if isinstance(value, bytes) else value
        yield Field(part, base + at, raw, name, text, meaning)


def _layers(
    part: str,
    buf: bytes,
    at: int,
    layers: Sequence[tuple[str, bytes]],
    base: int,
) -> Iterator[Field]:
    yield Field(part, base + at, buf[at : at + 7], "metalayers", len(layers), "number of metalayers")
    at += 7
    for name, content in layers:
        size = len(name.encode(errors="surrogateescape"))
        raw = buf[at + 2 + size : at + 6 + size]
        (offset,) = struct.unpack(">i", raw)
        yield Field(part, base + at + 2 + size, raw, f"offset of {name!r}", offset, "from the start of this part")
        yield Field(part, base + offset + 5, content, name, f"{len(content)} bytes", _LAYERS.get(name, "a metalayer"))
        if name == "b2nd":
            with suppress(FormatError, UnsupportedError):  # one that cannot be read has no fields
                yield from _array(part, base + offset + 5, content)
        at += 6 + size


def _array(part: str, start: int, content: bytes) -> Iterator[Field]:
    layout = b2nd.unpack(content)
    yield Field(part, start + 1, content[1:2], "b2nd.version", content[1], "version of the metalayer")
    yield Field(part, start + 2, content[2:3], "b2nd.ndim", content[2], "number of dimensions")
    at = 3
    for name, extents, width in (
        ("shape", layout.shape, 9),
        ("chunks", layout.chunks, 5),
        ("blocks", layout.blocks, 5),
    ):
        stop = at + 1 + width * len(extents)
        yield Field(part, start + at, content[at:stop], f"b2nd.{name}", extents, "extents in items")
        at = stop
    yield Field(part, start + at + 6, content[at + 6 :], "b2nd.dtype", layout.dtype_text, "type of the items")


_LAYERS = {
    "b2nd": "shape, chunks, blocks and type of an array",
    "caterva": "shape, chunks and blocks of an array",
    "b2array": "fill value, dimensions, checksums: b2array's own",
}


def _index(head: frame.Frame, buf: bytes, base: int) -> Iterator[Field]:
    length = ChunkHeader.unpack(buf).header_len
    yield from _rows("index", buf, base, (row for row in _with_positions(CHUNK_FIELDS) if row[1] < length))
    what = "file of the chunk" if head.frame_type == FrameType.SPARSE else "from the end of the header"
    # All offsets are one compressed chunk, so a single offset has no bytes in the file.
    for n in range(head.nchunks):
        where = head.entry(n)
        value = where.name.lower() if isinstance(where, Special) else where
        yield Field("index", base + length, np.int64(head.offsets[n]).tobytes(), f"chunk {n}", value, what)


def _trailer(head: frame.Frame, buf: bytes, base: int) -> Iterator[Field]:
    yield Field("trailer", base + 1, buf[1:2], "trailer_version", buf[1], "version of the trailer")
    yield from _layers("trailer", buf, 2, head.vlmetalayers, base)
    at = len(buf) - 23
    (size,) = struct.unpack_from(">I", buf, at + 1)
    yield Field("trailer", base + at + 1, buf[at + 1 : at + 5], "trailer_size", size, "bytes of the trailer")
    meaning = {0: "none", 3: "b2array's checksum of header, index and trailer"}.get(head.fingerprint_type, "not known")
    yield Field("trailer", base + at + 6, buf[at + 6 : at + 7], "fingerprint_type", buf[at + 6], meaning)
    yield Field("trailer", base + at + 7, buf[at + 7 :], "fingerprint", buf[at + 7 :].hex(), "names this state")


def _fields_of_bloscpack(f: Reader) -> Iterator[Field]:
    raw = f.head_bytes()
    entries = VERSION1_FIELDS if f.header.version == 1 else HEADER_FIELDS
    yield from _rows("header", raw, 0, _with_positions(entries))
    meta, at = f.meta_head, f.header.length
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
    for n, start in enumerate(np.frombuffer(raw, "<i8", nchunks, at).tolist() if nchunks else ()):
        yield Field("offsets", at, raw[at : at + 8], f"chunk {n}", start, "where it begins, -1: not known")
        at += 8
    if at < len(raw):
        unused = f"{(len(raw) - at) // 8} times 8 bytes"
        yield Field("offsets", at, raw[at:], "room", unused, "for offsets of further chunks")
