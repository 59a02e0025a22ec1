"""Summaries: the description of an array without its index, and the commit that it belongs to.

A group stores the summaries of its members in one place, so that it can describe the members without reading them. A
summary includes an exact copy of the header of the member's frame, and the fingerprint at the frame's end. Every commit
changes the header or the fingerprint. So together they identify the state that the summary describes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from b2array import config
from b2array.errors import FormatError, UnsupportedError
from b2array.format import frame
from b2array.format.annotations import Annotations
from b2array.format.b2nd import TEXT, unpack_text
from b2array.format.frame_header import unpack_header
from b2array.format.state import State, parse, unpack_annotations

__all__ = ["Record", "Summary", "pack", "pack_all", "unpack", "unpack_all"]

Record = tuple[bytes, bytes, bytes]
"""A summary as it is stored: header, fingerprint, and fill value, dimensions, type and attributes as annotations."""

_MAX_NBYTES = 2**14
"""The maximum size of a summary, in bytes: every reader that opens the group reads all summaries."""
_MAX_ALL_NBYTES = 2**22
"""The maximum size of all summaries together, in bytes: larger ones would slow down every commit of the group."""
_NOWHERE = np.array([-1]).tobytes()
"""The entry that an artificial index repeats."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A parsed record: layout, annotations and attributes. The index is artificial, so no items can be read."""

    state: State
    header: bytes
    fingerprint: bytes


def pack(state: State, header: bytes) -> Record | None:
    """Return the summary of a state.

    Return None if the summary would be too long, if other software wrote the frame, or if the name of an attribute is
    not text.
    """
    annotations = state.annotations
    if not header or not state.frame.is_ours or annotations.foreign:
        return None
    notes = Annotations(
        annotations.fill,
        annotations.dims,
        annotations.dtype,
        attrs=tuple(state.attrs().items()),
        cparams=annotations.cparams,
    )
    try:
        content = notes.pack()
    except UnicodeEncodeError:
        return None
    if len(header) + len(content) > _MAX_NBYTES:
        return None
    return header, state.frame.fingerprint, content


def unpack(record: Any) -> Summary:
    """Read a summary."""
    is_record = isinstance(record, list) and len(record) == 3 and all(type(part) is bytes for part in record)
    if not is_record or len(record[1]) != frame.FINGERPRINT_NBYTES:
        raise FormatError("expected a header, a fingerprint and annotations in a summary, found something else")
    header, fingerprint, content = record
    parsed = unpack_header(header)
    nchunks = -(-parsed.nbytes // parsed.chunksize) if parsed.chunksize > 0 else 0
    if text := parsed.metalayer(TEXT):
        nchunks = unpack_text(text).nchunks
    if 8 * nchunks > config.limits.index_nbytes:
        raise FormatError(f"expected at most {config.limits.index_nbytes // 8} chunks, found {nchunks}")
    described = frame.with_tail(
        parsed,
        offsets=np.ndarray(nchunks, np.int64, _NOWHERE, strides=(0,)),
        fingerprint_type=frame.FINGERPRINT_128,
        fingerprint=fingerprint,
    )
    notes = unpack_annotations(content, parsed, nchunks)
    return Summary(parse(described, notes), header, fingerprint)


def pack_all(records: Mapping[str, Record | None]) -> bytes:
    """Pack summaries and their names as a CRC-32 and one chunk; return no bytes if the result would be too long."""
    content = msgpack.packb(dict(sorted(records.items())))
    if len(content) > _MAX_ALL_NBYTES:
        return b""
    packed = frame.pack_vlmeta(content)
    return zlib.crc32(packed).to_bytes(4, "big") + packed


def unpack_all(buf: bytes) -> dict[str, Any]:
    """Return the summaries that `pack_all` packed, by name; none if the bytes are damaged."""
    # Summaries only save requests: without them, readers open the members.
    with suppress(ValueError, TypeError, AttributeError, FormatError, UnsupportedError, msgpack.UnpackException):
        crc, packed = buf[:4], buf[4:]
        if zlib.crc32(packed).to_bytes(4, "big") == crc:
            by_name = msgpack.unpackb(frame.unpack_vlmeta(packed))
            return {name: each for name, each in by_name.items() if isinstance(name, str)}
    return {}
