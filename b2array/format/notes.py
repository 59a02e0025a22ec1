"""What b2array notes in a frame beside the data: sizes of chunks, attributes without a metalayer of their own.

All functions are pure: they take a frame and its extras, and return new ones.
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from b2array.codec import decode, encode
from b2array.errors import FormatError, LimitError, UnsupportedError
from b2array.format import extras, frame
from b2array.format.extras import Extras
from b2array.format.frame import Frame
from b2array.format.metalayers import MAX_LAYERS, MAX_NAME_NBYTES, Layers

__all__ = [
    "MARKS",
    "Sizes",
    "attrs",
    "changed_chunks",
    "extras_of",
    "merged",
    "packed_sizes",
    "sized_blocks",
    "sizes_of",
    "with_attr",
    "with_extras",
]

Sizes = npt.NDArray[np.uint32]

MARKS = "marks"
"""Key of what tells chunks from each other in a file whose every commit moves them: eight bytes for each."""

_MERGED = ("fill", "dims", "dtype", "unknown")
_SIZES_LIMIT = 2**22
"""Above this many entries a record of all block sizes would not stay under its limit anyway."""


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
    noted = Extras.unpack(content, itemsize=described.typesize, ndim=ndim, nchunks=described.nchunks)
    # Other software may have written chunks again, or moved others to their numbers.
    return noted if described.fingerprint_type == frame.FINGERPRINT_128 else replace(noted, lost=())


def sized_blocks(described: Frame) -> int:
    """Return of how many blocks a chunk the sizes are noted beside its own."""
    if described.chunksize <= 0 or described.blocksize <= 0 or described.vl_blocks:
        return 0
    nblocks = -(-described.chunksize // described.blocksize)
    return nblocks if described.nchunks * (1 + nblocks) <= _SIZES_LIMIT else 0


def sizes_of(described: Frame, noted: Extras) -> Sizes:
    """Return the sizes of chunks and their blocks, one row a chunk; zeros where they are not known."""
    sizes = np.zeros((described.nchunks, 1 + sized_blocks(described)), np.uint32)
    # After other software has written, they may be those of other chunks.
    if noted.sizes is not None and described.fingerprint_type == frame.FINGERPRINT_128:
        for width in {sizes.shape[1], 1}:
            known = extras.unpack_sizes(noted.sizes, described.nchunks, width - 1)
            if known is not None:
                sizes[:, :width] = known
    return sizes


def attrs(described: Frame, noted: Extras) -> dict[str, bytes]:
    """Return the encoded attributes, wherever they are."""
    own = {name: frame.unpack_vlmeta(raw) for name, raw in described.vlmetalayers if name != extras.LAYER}
    return {**dict(noted.attrs), **own}


def merged(base: Extras, ours: Extras, theirs: Extras) -> Extras:
    """Return what two writers made of the same extras, attributes aside; where both changed something, ours."""
    changed = {name: getattr(ours, name) for name in _MERGED if getattr(ours, name) != getattr(base, name)}
    written = set(base.lost) - set(ours.lost)
    return replace(theirs, **changed, lost=tuple(n for n in theirs.lost if n not in written))


def changed_chunks(was: Frame, now: Frame, *, moved: bool) -> set[int] | None:
    """Return which chunks differ between two states of as many chunks, or None if nothing says it.

    Parameters
    ----------
    was, now : Frame
        The states.
    moved : bool
        Whether a chunk's place in one of them says nothing about the other.
    """
    before, after = (_marks_of(was), _marks_of(now)) if moved else (was.offsets, now.offsets)
    return None if before is None or after is None else set(np.flatnonzero(before != after).tolist())


def _marks_of(described: Frame) -> npt.NDArray[np.int64] | None:
    noted = dict(extras_of(described).unknown).get(MARKS)
    if not isinstance(noted, bytes) or not noted or len(noted) != 8 * described.nchunks:
        return None
    return np.frombuffer(noted, "<i8").astype(np.int64)


def with_attr(described: Frame, noted: Extras, name: str, content: bytes | None) -> tuple[Frame, Extras]:
    """Set an attribute, or remove it: in a metalayer of its own if there is room, else among the extras."""
    others = tuple(layer for layer in described.vlmetalayers if layer[0] != name or name == extras.LAYER)
    kept = tuple(entry for entry in noted.attrs if entry[0] != name)
    room = sum(key != extras.LAYER for key, _ in others) < MAX_LAYERS - 1
    fits = name != extras.LAYER and "\0" not in name and len(name.encode(errors="surrogateescape")) <= MAX_NAME_NBYTES
    had = len(others) < len(described.vlmetalayers)
    if content is None:
        layers = others
    elif had or (fits and room):
        new = (name, frame.pack_vlmeta(content))
        layers = tuple(new if layer[0] == name else layer for layer in described.vlmetalayers)
        layers = layers if had else (*layers, new)
    else:
        layers, kept = others, (*kept, (name, content))
    return replace(described, vlmetalayers=layers), replace(noted, attrs=kept)


def with_extras(layers: Layers, noted: Extras, url: str) -> Layers:
    """Put the extras into their metalayer. Without room for it they stay out, unless attributes would be lost.

    Raises
    ------
    LimitError
        Attributes would be lost.
    """
    others = tuple(layer for layer in layers if layer[0] != extras.LAYER)
    if len(others) >= MAX_LAYERS:
        if noted.attrs:
            names = ", ".join(repr(name) for name, _ in noted.attrs)
            raise LimitError(f"{url} has {len(others)} variable-length metalayers: no room for {names}")
        warnings.warn(f"{url} has {len(others)} variable-length metalayers: no room for b2array's own", stacklevel=2)
        return others
    return (*others, (extras.LAYER, frame.pack_vlmeta(noted.pack())))


def packed_sizes(sizes: Sizes) -> bytes | None:
    """Return the record of sizes, only those of whole chunks if that of blocks gets too large, None if both do."""
    if not sizes.any():
        return None
    return extras.pack_sizes(sizes) or extras.pack_sizes(sizes[:, :1])


def thinned(described: Frame, limit: int) -> tuple[Frame, bytes]:
    """Return a frame without index and without a record of sizes above `limit` bytes, and the index as a chunk."""
    noted = extras_of(described)
    layers = described.vlmetalayers
    if noted.sizes is not None and len(noted.sizes) > limit:
        packed = frame.pack_vlmeta(replace(noted, sizes=_short_sizes(described, noted, limit)).pack())
        layers = tuple((name, packed if name == extras.LAYER else raw) for name, raw in layers)
    index = described.offsets.astype("<i8").tobytes()
    return replace(described, vlmetalayers=layers, offsets=described.offsets[:0]), encode.encode(index, typesize=8)


def _short_sizes(described: Frame, noted: Extras, limit: int) -> bytes | None:
    """Return a record of sizes of at most `limit` bytes which still says what chunks have checksums."""
    rows = sizes_of(described, noted)[:, :1]
    packed = extras.pack_sizes(rows)
    if packed is None or len(packed) > limit:
        packed = extras.pack_sizes(np.where(rows > 0, extras.UNSIZED, 0).astype(np.uint32))
    return packed if packed is None or len(packed) <= limit else None


def restored(thin: Frame, index: bytes) -> Frame:
    """Return the frame that `thinned` took apart."""
    return replace(thin, offsets=decode.decode(index).view("<i8").astype(np.int64, copy=False))
