"""What `info` says about a file of any kind, as data and as lines of text."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from b2array import bloscpack
from b2array.array import info
from b2array.array.array import NDArray
from b2array.array.schunk import SChunk
from b2array.bloscpack.header import (
    CHECKSUMS,
    HEADER_FIELDS,
    META_FIELDS,
    META_HEADER_LEN,
    VERSION1_FIELDS,
    digest_size,
)
from b2array.codec.header import HeaderField
from b2array.engine import snapshot
from b2array.engine.handle import Handle
from b2array.engine.snapshot import Snapshot
from b2array.errors import B2ArrayError
from b2array.group.group import open_group
from b2array.store.open import open_store
from b2array.tools import anatomy, formats
from b2array.tools.sources import Source

__all__ = ["Chunks", "describe", "lines", "plain", "raw_fields", "surveyed", "table"]

Storage = Mapping[str, Any] | None


def describe(url: str, storage_options: Storage) -> dict[str, Any]:
    """Return what there is to know about an array, a super-chunk, a Bloscpack file or a group.

    Raises
    ------
    FileNotFoundError
        There is nothing.
    FormatError
        It is of none of these kinds.
    """
    try:
        kind = formats.find(url, None, storage_options, exists=True)[0]
    except IsADirectoryError:
        return _group(url, storage_options)
    if kind.name == "blp":
        with bloscpack.open(url, storage_options=storage_options) as f:
            return _bloscpack(f)
    if kind.name != "b2nd":
        with kind.open(url, storage_options) as source:
            return {"format": kind.name} | _source(source)
    held = _load(url, storage_options)
    return _frame(held) if isinstance(held, Snapshot) else held


def _load(url: str, storage_options: Storage) -> Snapshot | dict[str, Any]:
    try:
        return snapshot.load(open_store(url, storage_options=storage_options))
    except FileNotFoundError as error:
        try:
            return _group(url, storage_options)
        except (FileNotFoundError, B2ArrayError):
            raise error from None


def _group(url: str, storage_options: Storage) -> dict[str, Any]:
    group = open_group(url, storage_options=storage_options)
    return {
        "format": "group",
        "url": group.url,
        "arrays": sorted(group.arrays()),
        "groups": sorted(group.groups()),
        "attrs": dict(group.attrs),
    }


def _frame(held: Snapshot) -> dict[str, Any]:
    handle = Handle(held, "r")
    chunks = SChunk(handle)
    if held.frame.metalayer("b2nd") is None and held.frame.metalayer("caterva") is None:
        return {
            "format": "super-chunk",
            "url": held.url,
            "layout": held.frame.frame_type.name.lower(),
            "nchunks": chunks.nchunks,
            "chunksize": chunks.chunksize,
            "typesize": chunks.typesize,
            "nbytes": chunks.nbytes,
            "cbytes": chunks.cbytes,
            "ratio": round(chunks.cratio, 2),
            "codec": info.codec(chunks.cparams),
            "filters": info.filters(chunks.cparams),
            "metalayers": [name for name, _ in held.frame.metalayers],
            "attrs": dict(chunks.vlmeta),
        }
    a = NDArray(handle)
    rows = {name: value for name, value in a.info.items() if name not in ("mode", "fingerprint")}
    exact = {"nbytes": a.nbytes, "cbytes": a.cbytes, "ratio": round(a.cratio, 2)}
    return {"format": "array"} | rows | exact | {"attrs": dict(a.attrs)}


def _bloscpack(f: bloscpack.Reader) -> dict[str, Any]:
    header = f.header
    return {
        "format": "bloscpack",
        "url": f.url,
        "version": header.version,
        "shape": f.shape,
        "dtype": str(f.dtype),
        "order": f.order if f.is_array else None,
        "nbytes": f.nbytes,
        "cbytes": f.cbytes,
        "ratio": round(f.nbytes / f.cbytes, 2),
        "nchunks": f.nchunks,
        "chunk size": header.chunk_size,
        "last chunk": header.last_chunk,
        "checksum": CHECKSUMS[header.checksum],
        "offsets": header.offsets,
        "room for": f.nslots - f.nchunks if f.nslots else 0,
        "metadata": f.metadata,
    }


def _source(source: Source) -> dict[str, Any]:
    return {
        "shape": source.shape,
        "dtype": str(source.dtype),
        "chunks": source.chunks,
        "fill value": source.fill,
        "dims": source.dims,
        "attrs": dict(source.attrs),
    }


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a description as text; what is not there is left out."""
    rows = {name: value for name, value in found.items() if value is not None and name != "attrs"}
    for name in ("nbytes", "cbytes"):
        if name in rows:
            rows[name] = info.nbytes(rows[name])
    rows |= {f"attrs.{name}": value for name, value in found.get("attrs", {}).items()}
    yield from repr(info.Info(rows)).splitlines()


def plain(value: Any) -> Any:
    """Turn a value into what JSON takes."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist()) if value.dtype.kind in "biufUSV" else str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str | None) else str(value)


class Chunks:
    """The chunks of a frame or of a Bloscpack file, and what else takes room in it."""

    def __init__(self, found: anatomy.Survey, grid: tuple[int, ...]) -> None:
        self.survey = found
        self.grid = grid

    def data(self) -> dict[str, Any]:
        """Return everything as JSON takes it."""
        found = self.survey
        coords = np.unravel_index(np.arange(len(found.chunks)), self.grid) if found.chunks and self.grid else ()
        return {
            "total": found.total,
            "frame": found.frame,
            "live": found.live,
            "dead": found.dead,
            "grid": list(self.grid),
            "chunks": [
                each._asdict() | {"coords": [int(axis[n]) for axis in coords], "ratio": round(each.ratio, 2)}
                for n, each in enumerate(found.chunks)
            ],
        }

    def lines(self) -> Iterator[str]:
        """Yield sizes, ratios, dead space and the map of the grid as text."""
        found = self.survey
        stored = [each for each in found.chunks if each.offset is not None]
        rows: dict[str, Any] = {"chunks": f"{len(found.chunks)}, {len(stored)} of them stored"}
        if stored:
            for name, values in (("cbytes", [each.cbytes for each in stored]), ("ratio", [s.ratio for s in stored])):
                middle = median(values)
                form = ".2f" if name == "ratio" else ".0f"
                rows[f"{name} of a chunk"] = f"{min(values):{form}} to {max(values):{form}}, median {middle:{form}}"
        if found.total is not None:
            rows["file"] = info.nbytes(found.total)
        rows["live"] = info.nbytes(found.live)
        rows["frame"] = info.nbytes(found.frame)
        rows["dead"] = "not known: the files cannot be listed"
        if found.dead is not None:
            share = f", {found.dead / found.total:.0%}" if found.dead and found.total else ""
            rows["dead"] = info.nbytes(found.dead) + share
        yield from repr(info.Info(rows)).splitlines()
        yield ""
        yield "what compression leaves of each chunk: · nothing  ░ up to 25 %  ▒ 50 %  ▓ 75 %  █ more"
        yield from anatomy.chunk_map(found.chunks, self.grid)


def surveyed(url: str, storage_options: Storage) -> Chunks:
    """Look at all chunks of a frame or of a Bloscpack file."""
    if formats.find(url, None, storage_options, exists=True)[0].name == "blp":
        with bloscpack.open(url, storage_options=storage_options) as f:
            return Chunks(_bloscpack_survey(f), (f.nchunks,))
    held = snapshot.load(open_store(url, storage_options=storage_options))
    grid: tuple[int, ...] = (held.frame.nchunks,)
    if held.frame.metalayer("b2nd") is not None or held.frame.metalayer("caterva") is not None:
        grid = NDArray(Handle(held, "r")).grid_shape or (1,)
    return Chunks(anatomy.survey(held), grid)


def _bloscpack_survey(f: bloscpack.Reader) -> anatomy.Survey:
    sizes = []
    for n in range(f.nchunks):
        part = f.place(n)
        cbytes = len(f.get_chunk(n))
        sizes.append(anatomy.ChunkSizes(n, part.start, "", part.nbytes, cbytes, 0, ""))
    live = sum(each.cbytes for each in sizes) + f.nchunks * f.checksum_nbytes
    head = f.first_chunk
    return anatomy.Survey(tuple(sizes), f.cbytes, head, live, max(0, f.cbytes - head - live))


def raw_fields(url: str, storage_options: Storage) -> Iterator[anatomy.Field]:
    """Yield every field in front of and behind the chunks."""
    if formats.find(url, None, storage_options, exists=True)[0].name == "blp":
        with bloscpack.open(url, storage_options=storage_options) as f:
            yield from _bloscpack_fields(f)
        return
    yield from anatomy.fields(snapshot.load(open_store(url, storage_options=storage_options)))


def _placed(table: Sequence[HeaderField]) -> Iterator[tuple[str, int, str, str]]:
    """Yield name, position, struct format and meaning of fields that follow each other without gaps."""
    at = 0
    for field in table:
        yield field.name, at, f"<{field.format}", field.meaning
        at += struct.calcsize(f"<{field.format}")


def _bloscpack_fields(f: bloscpack.Reader) -> Iterator[anatomy.Field]:
    """Yield every field in front of the chunks, in the order of the file."""
    raw = f.head_bytes()
    table = VERSION1_FIELDS if f.header.version == 1 else HEADER_FIELDS
    yield from anatomy.rows("header", raw, 0, _placed(table))
    meta, at = f.meta_head, f.header.length
    if meta is not None:
        yield from anatomy.rows("metadata", raw[at:], at, _placed(META_FIELDS))
        at += META_HEADER_LEN
        for name, nbytes, meaning in (
            ("metadata", meta.meta_comp_size, "what they say"),
            ("room", meta.max_meta_size - meta.meta_comp_size, "for longer ones"),
            ("digest", digest_size(meta.checksum), "checksum of the metadata"),
        ):
            if nbytes:
                yield anatomy.Field("metadata", at, raw[at : at + nbytes], name, f"{nbytes} bytes", meaning)
            at += nbytes
    nchunks = min(f.nchunks, f.nslots)
    for n, start in enumerate(np.frombuffer(raw, "<i8", nchunks, at).tolist() if nchunks else ()):
        yield anatomy.Field("offsets", at, raw[at : at + 8], f"chunk {n}", start, "where it begins, -1: not known")
        at += 8
    if at < len(raw):
        unused = f"{(len(raw) - at) // 8} times 8 bytes"
        yield anatomy.Field("offsets", at, raw[at:], "room", unused, "for offsets of further chunks")


def table(rows: Sequence[Sequence[str]], align: str) -> Iterator[str]:
    """Yield rows as text; `align` has ``<`` or ``>`` for each column."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(align))]
    for row in rows:
        cells = (f"{text:{side}{width}}" for text, side, width in zip(row, align, widths, strict=True))
        yield "  ".join(cells).rstrip()
