"""Filters: reversible (or lossy) rearrangements of a block before it is compressed, and the registry of user filters.

Sources: "Blosc Chunk Format" (section Header, filter codes) of the Blosc2 documentation, and the files that the C
library writes. A pipeline has six slots. Writing applies slots 0 to 5 to each block, reading undoes 5 to 0. No filter
changes the length of a block; bytes at its end that do not fill an item are copied.

All functions work on many blocks of one length at once, arrays of uint8 with shape (n, nbytes). They never change their
arguments, and may be called from several threads at once.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numcodecs.abc import Codec
from numcodecs.compat import ensure_bytes

from b2array.codec.chunk_header import NFILTERS, VERSION_BLOSC1, VERSION_STABLE, FilterId
from b2array.errors import B2ArrayError, FormatError, UnsupportedError

__all__ = ["CELL_FILTERS", "Pipeline", "backward", "check", "filter_id", "filter_name", "forward", "register"]

Bytes = npt.NDArray[np.uint8]
Shape = tuple[int, ...]
MakeFilter = Callable[[int, int, Shape | None], Codec]

_FIRST_USER_ID = 32
_LAST_ID = 255
_MAX_CELL_DIMS = 8
_MANTISSA_BITS = {4: 23, 8: 52}
_INTEGER_BITS = {1: 8, 2: 16, 4: 32, 8: 64}
_FLOATS: dict[int, np.dtype[Any]] = {4: np.dtype("<f4"), 8: np.dtype("<f8")}
_WORDS = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8"}
_ANY_BLOCK = frozenset({FilterId.NOFILTER, FilterId.SHUFFLE, FilterId.BITSHUFFLE, FilterId.DELTA})
_EVEN_BYTES = np.uint64(0x00FF00FF00FF00FF)
_EACH_LANE = np.uint64(0x0001000100010001)
_registry: dict[int, MakeFilter] = {}


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The filters of a chunk.

    `filters` are six ids in pipeline order, 0 for an empty slot, and `metas` the parameter byte of each slot (negative
    parameters in two's complement). `typesize` is the size of an item according to the chunk header. In format version
    2, bitshuffle works as in Blosc1. `blockshape` is the shape of a block in items, for filters that use it.
    """

    filters: tuple[int, ...]
    metas: tuple[int, ...]
    typesize: int
    version: int = VERSION_STABLE
    blockshape: Shape | None = None

    def __post_init__(self) -> None:
        if not len(self.filters) == len(self.metas) == NFILTERS:
            raise ValueError(f"a pipeline has {NFILTERS} slots, not {len(self.filters)} and {len(self.metas)} metas")
        if self.typesize < 1:
            raise ValueError(f"typesize must be at least 1, not {self.typesize}")


class _FilterSlot(NamedTuple):
    """A filter in its pipeline; `reference` is None in block 0 of the chunk."""

    filter: int
    meta: int
    typesize: int
    blosc1: bool
    blockshape: Shape | None
    reference: Bytes | None

    @property
    def signed_meta(self) -> int:
        return self.meta - 256 if self.meta > 127 else self.meta


def filter_id(name: str | int) -> int:
    """Return the id of a built-in filter, given by name or id, or of a registered filter."""
    if isinstance(name, str):
        names = [member.name.lower() for member in FilterId]
        if name not in names:
            raise ValueError(f"unknown filter {name!r}; there are {', '.join(names)}, and registered ids")
        return int(FilterId[name.upper()])
    if isinstance(name, bool):
        raise TypeError("filter must be a name or an id, not bool")
    number = operator.index(name)
    if number not in _BUILT_IN and number not in _registry:
        raise ValueError(f"unknown filter id {number}; register it first with b2array.filters.register")
    return number


def filter_name(fid: int) -> str:
    """Return the name of a filter id, such as "bytedelta" or "filter 200"."""
    if fid in _BUILT_IN:
        return FilterId(fid).name.lower()
    return f"filter {fid}"


def register(filter_id: int, make: MakeFilter) -> None:
    """Register a user-defined filter under an id. It replaces an earlier one with the same id.

    Parameters
    ----------
    filter_id : int
        32 to 255, except the ids of built-in filters. The Blosc project assigns the ids below 160 to its plugins.
    make : callable
        ``make(meta, typesize, blockshape)`` returns a `numcodecs.abc.Codec`. Its ``encode`` filters one block, given as
        `bytes`, and ``decode`` undoes the filter; neither changes the length. `meta` is the parameter byte (0 to 255),
        `typesize` is in bytes, `blockshape` is in items, or None outside of arrays. `make` is called once for every
        batch of blocks, from several threads.

    Raises
    ------
    ValueError
        The id is out of range, or belongs to a built-in filter.
    TypeError
        The id is not an integer, or `make` is not callable.

    Examples
    --------
    >>> import numcodecs
    >>> register(200, lambda meta, typesize, blockshape: numcodecs.Delta(dtype=f"u{typesize}"))
    >>> pipeline = Pipeline((200, 0, 0, 0, 0, 0), (0,) * 6, typesize=1)
    >>> forward(pipeline, np.array([[5, 6, 8]], np.uint8))
    array([[5, 1, 2]], dtype=uint8)
    """
    number = operator.index(filter_id)
    if number in _BUILT_IN or not _FIRST_USER_ID <= number <= _LAST_ID:
        raise ValueError(
            f"filter ids of your own are {_FIRST_USER_ID} to {_LAST_ID}, except ids of built-in filters, not {number}"
        )
    if not callable(make):
        raise TypeError(f"make must be callable, not {type(make).__name__}")
    _registry[number] = make


def check(pipeline: Pipeline, *, encode: bool = False) -> None:
    """Check that a pipeline can be undone; with `encode` also that it can be applied."""
    if _ANY_BLOCK.issuperset(pipeline.filters):
        return
    if _BUILT_IN.issuperset(pipeline.filters):
        _check_built_in(pipeline, encode=encode)
    else:
        _check_slots(pipeline, encode=encode)


def _check_slots(pipeline: Pipeline, *, encode: bool) -> None:
    for slot in _slots(pipeline, None):
        if slot.filter not in _FILTERS and slot.filter not in _registry:
            raise UnsupportedError(
                f"{filter_name(slot.filter)} is not built in; b2array.filters.register({slot.filter}, make) adds it, "
                "where make returns a numcodecs codec"
            )
        if slot.filter in CELL_FILTERS:
            _check_cells(slot, encode=encode)
    if encode:
        check_dropped_bits(pipeline)
        _check_means(pipeline)


# Pipelines are few. Those of registered filters are checked each time, because the register can change.
_check_built_in = functools.lru_cache(maxsize=256)(_check_slots)


def check_dropped_bits(pipeline: Pipeline) -> None:
    """Raise ValueError if a filter cannot drop the number of bits in its parameter from these items."""
    for slot in _slots(pipeline, None):
        if slot.filter in _TRUNCATIONS:
            _bits_to_clear(slot)


def _check_means(pipeline: Pipeline) -> None:
    """Raise ValueError if NDMEAN would not receive the original floats."""
    slots = _slots(pipeline, None)
    if any(slot.filter == FilterId.NDMEAN for slot in slots[1:]):
        raise ValueError("ndmean must be the first filter, because it needs the items themselves")
    if slots and slots[0].filter == FilterId.NDMEAN and pipeline.typesize not in _FLOATS:
        raise ValueError(f"ndmean needs floats of 4 or 8 bytes, not items of {pipeline.typesize}")


def forward(
    pipeline: Pipeline,
    blocks: Bytes,
    *,
    reference: Bytes | None = None,
    first: bool = False,
) -> Bytes:
    """Return filtered blocks of one chunk, given as an array of shape (n, nbytes); the array itself if nothing changed.

    A short last block needs a separate call. With `first`, row 0 is block 0 of the chunk; otherwise DELTA needs the
    data of block 0 as `reference`.
    """
    check(pipeline, encode=True)
    # DELTA combines each block with block 0, which must therefore be ready before all others.
    if FilterId.DELTA in pipeline.filters:
        if first:
            head = _apply(pipeline, blocks[:1], None)
            rest = blocks[1:]
            if len(rest):
                rest = forward(pipeline, rest, reference=blocks[0])
            return np.concatenate((head, rest))
        _, needed = _delta_words(pipeline.typesize, blocks.shape[1])
        if reference is None or reference.size < needed:
            raise ValueError("a filter pipeline with DELTA needs block 0 of the chunk")
        if not _LOSSY.isdisjoint(pipeline.filters):
            # Readers decode block 0 without the truncated bits, or with means.
            source = reference[np.newaxis]
            filtered = forward(pipeline, source, first=True)
            reference = backward(pipeline, filtered, first=True)[0]
    return _apply(pipeline, blocks, reference)


def backward(
    pipeline: Pipeline,
    blocks: Bytes,
    *,
    reference: Bytes | None = None,
    first: bool = False,
) -> Bytes:
    """Undo `forward`, which has the same parameters; `reference` is the decoded block 0.

    Raises FormatError if the filters do not fit the blocks, and the errors of `check`.
    """
    check(pipeline)
    if FilterId.DELTA in pipeline.filters:
        if first:
            head = _apply(pipeline, blocks[:1], None, undo=True)
            rest = blocks[1:]
            if len(rest):
                rest = backward(pipeline, rest, reference=head[0])
            return np.concatenate((head, rest))
        if reference is None:
            raise ValueError("a filter pipeline with DELTA needs block 0 of the chunk")
        _, needed = _delta_words(pipeline.typesize, blocks.shape[1])
        if reference.size < needed:
            raise FormatError(f"expected a block 0 of at least {needed} bytes for DELTA, found {reference.size}")
    return _apply(pipeline, blocks, reference, undo=True)


_Filter = Callable[[_FilterSlot, Bytes], Bytes]


def _slots(pipeline: Pipeline, reference: Bytes | None) -> list[_FilterSlot]:
    blosc1 = pipeline.version == VERSION_BLOSC1
    slots = []
    for number, meta in zip(pipeline.filters, pipeline.metas, strict=True):
        if number != FilterId.NOFILTER:
            slot = _FilterSlot(number, meta, pipeline.typesize, blosc1, pipeline.blockshape, reference)
            slots.append(slot)
    return slots


def _apply(
    pipeline: Pipeline,
    blocks: Bytes,
    reference: Bytes | None,
    *,
    undo: bool = False,
) -> Bytes:
    slots = _slots(pipeline, reference)
    blocks = np.ascontiguousarray(blocks)
    if not blocks.size:
        return blocks
    for slot in reversed(slots) if undo else slots:
        apply, invert = _FILTERS.get(slot.filter, (_user_forward, _user_backward))
        step = invert if undo else apply
        blocks = blocks if step is None else step(slot, blocks)
    return blocks


def _with_tail(blocks: Bytes, length: int) -> Bytes:
    """Return a new array like `blocks`, with a copy of the bytes after the first `length` bytes of each block."""
    out = np.empty_like(blocks)
    out[:, length:] = blocks[:, length:]
    return out


def _copy_planes(target: Bytes, source: Bytes) -> None:
    """Copy an array of shape (n, width, items) plane by plane: up to 3 times faster than one transposed copy."""
    for j in range(target.shape[1]):
        target[:, j] = source[:, j]


def _shuffle(slot: _FilterSlot, blocks: Bytes) -> Bytes:
    # The parameter is a width in bytes: text of 4 bytes a character is shuffled by characters, not by whole items.
    width = slot.meta or slot.typesize
    n = blocks.shape[1] // width
    if width == 1 or n <= 1:
        return blocks
    length = n * width
    out = _with_tail(blocks, length)
    items = blocks[:, :length].reshape(-1, n, width)
    planes = out[:, :length].reshape(-1, width, n)
    _copy_planes(planes, items.swapaxes(1, 2))
    return out


def _unshuffle(slot: _FilterSlot, blocks: Bytes) -> Bytes:
    width = slot.meta or slot.typesize
    n = blocks.shape[1] // width
    if width == 1 or n <= 1:
        return blocks
    length = n * width
    out = _with_tail(blocks, length)
    items = out[:, :length].reshape(-1, n, width)
    planes = blocks[:, :length].reshape(-1, width, n)
    _copy_planes(items.swapaxes(1, 2), planes)
    return out


def _bitshuffle_items(slot: _FilterSlot, nbytes: int) -> int:
    """Return the number of items at the start of a block that bitshuffle changes."""
    n = nbytes // slot.typesize
    rest = n % 8
    # C-Blosc 1 does not change such a block; Blosc2 leaves only the items after the last group of eight unchanged.
    if slot.blosc1 and rest:
        return 0
    return n - rest


def _bitshuffle(slot: _FilterSlot, blocks: Bytes) -> Bytes:
    m = _bitshuffle_items(slot, blocks.shape[1])
    typesize = slot.typesize
    if m == 0:
        return blocks
    length = m * typesize
    out = _with_tail(blocks, length)
    planes = np.empty((len(blocks), typesize, m), np.uint8)
    items = blocks[:, :length].reshape(-1, m, typesize)
    _copy_planes(planes, items.swapaxes(1, 2))
    _transpose_bits(planes)
    rows = out[:, :length].reshape(-1, typesize, 8, m // 8)
    octets = planes.reshape(-1, typesize, m // 8, 8)
    rows[...] = octets.swapaxes(2, 3)
    return out


def _unbitshuffle(slot: _FilterSlot, blocks: Bytes) -> Bytes:
    m = _bitshuffle_items(slot, blocks.shape[1])
    typesize = slot.typesize
    if m == 0:
        return blocks
    length = m * typesize
    out = _with_tail(blocks, length)
    rows = blocks[:, :length].reshape(-1, typesize, 8, m // 8)
    planes = np.empty((len(blocks), typesize, m), np.uint8)
    octets = planes.reshape(-1, typesize, m // 8, 8)
    for k in range(8):
        octets[..., k] = rows[:, :, k]
    _transpose_bits(planes)
    items = out[:, :length].reshape(-1, m, typesize)
    _copy_planes(items.swapaxes(1, 2), planes)
    return out


# Hacker's Delight, section "Transposing a Bit Matrix": distances of the bits to swap, and masks of one bit of each
# pair.
_SWAPS = (
    (7, 0x00AA00AA00AA00AA),
    (14, 0x0000CCCC0000CCCC),
    (28, 0x00000000F0F0F0F0),
)


def _transpose_bits(planes: Bytes) -> None:
    """Transpose each 8 bytes of a contiguous array as a matrix of 8 x 8 bits, in place.

    The function is its own inverse. It swaps the off-diagonal quarters of ever larger squares, several times as fast as
    unpacking the bits.
    """
    words = planes.reshape(-1).view("<u8")
    # 128 KiB stay in the cache from step to step.
    piece = 2**14
    for start in range(0, words.size, piece):
        x = words[start : start + piece]
        t = np.empty_like(x)
        for distance, mask in _SWAPS:
            np.right_shift(x, np.uint64(distance), out=t)
            t ^= x
            t &= np.uint64(mask)
            x ^= t
            t <<= np.uint64(distance)
            x ^= t


def _delta_words(typesize: int, nbytes: int) -> tuple[int, int]:
    """Return the size of the words that DELTA combines, and the number of bytes of a block that the words cover."""
    # As C-Blosc2 chooses them, which knows machine words only.
    width = 1
    if typesize in _WORDS:
        width = typesize
    elif typesize % 8 == 0:
        width = 8
    return width, nbytes - nbytes % width


def _delta(slot: _FilterSlot, blocks: Bytes) -> Bytes:
    width, length = _delta_words(slot.typesize, blocks.shape[1])
    out = _with_tail(blocks, length)
    word = _WORDS[width]
    words = blocks[:, :length].view(word)
    new = out[:, :length].view(word)
    if slot.reference is not None:
        reference = slot.reference[:length].view(word)
        np.bitwise_xor(words, reference, out=new)
    else:
        new[:, :1] = words[:, :1]
        np.bitwise_xor(words[:, 1:], words[:, :-1], out=new[:, 1:])
    return out


def _undelta(slot: _FilterSlot, blocks: Bytes) -> Bytes:
    if slot.reference is not None:
        return _delta(slot, blocks)
    width, length = _delta_words(slot.typesize, blocks.shape[1])
    out = _with_tail(blocks, length)
    word = _WORDS[width]
    words = blocks[:, :length].view(word)
    new = out[:, :length].view(word)
    np.bitwise_xor.accumulate(words, axis=1, out=new)
    return out


def _bits_to_clear(slot: _FilterSlot) -> int:
    """Return the number of low bits that TRUNC_PREC clears in the mantissa of a float, or INT_TRUNC in an integer."""
    if slot.filter == FilterId.TRUNC_PREC:
        bits = _MANTISSA_BITS.get(slot.typesize)
        kind = "floats of 4 or 8"
        of_floats = f" of {8 * slot.typesize}-bit floats"
    else:
        bits = _INTEGER_BITS.get(slot.typesize)
        kind = "integers of 1, 2, 4 or 8"
        of_floats = ""
    name = filter_name(slot.filter)
    meta = slot.signed_meta
    if bits is None:
        raise ValueError(f"{name} needs {kind} bytes, not items of {slot.typesize}")
    if not -bits < meta <= bits or meta == 0:
        raise ValueError(f"{name} keeps 1 to {bits} bits{of_floats}, or drops -1 to {1 - bits}, not {meta}")
    return bits - meta if meta > 0 else -meta


def _truncate(slot: _FilterSlot, blocks: Bytes) -> Bytes:
    drop = _bits_to_clear(slot)
    nbytes = blocks.shape[1]
    length = nbytes - nbytes % slot.typesize
    if drop == 0 or length == 0:
        return blocks
    word = np.dtype(_WORDS[slot.typesize])
    all_bits = (1 << 8 * slot.typesize) - 1
    mask = word.type(all_bits >> drop << drop)
    out = _with_tail(blocks, length)
    words = blocks[:, :length].view(word)
    np.bitwise_and(words, mask, out=out[:, :length].view(word))
    return out


def _bytedelta_streams(slot: _FilterSlot, nbytes: int) -> tuple[int, list[slice]]:
    """Return the number of byte streams in a block, and the parts of a stream in which differences restart."""
    width = slot.meta or slot.typesize
    n = nbytes // width
    if slot.filter == FilterId.BYTEDELTA:
        return width, [slice(0, n)]
    # The first BYTEDELTA lost the last byte between its vector loop over 16 bytes per step and the loop over the rest.
    border = n - n % 16
    return width, [slice(0, border), slice(border, n)]


def _bytedelta(slot: _FilterSlot, blocks: Bytes) -> Bytes:
    width, parts = _bytedelta_streams(slot, blocks.shape[1])
    length = parts[-1].stop * width
    out = blocks.copy()
    streams = blocks[:, :length].reshape(len(blocks), width, -1)
    new = out[:, :length].reshape(streams.shape)
    for part in parts:
        differences = new[:, :, part]
        differences[:, :, 1:] -= streams[:, :, part][:, :, :-1]
    return out


def _unbytedelta(slot: _FilterSlot, blocks: Bytes) -> Bytes:
    width, parts = _bytedelta_streams(slot, blocks.shape[1])
    length = parts[-1].stop * width
    out = _with_tail(blocks, length)
    streams = blocks[:, :length].reshape(len(blocks), width, -1)
    new = out[:, :length].reshape(streams.shape)
    if len(parts) == 1 and streams.shape[2] % 8 == 0:
        # One block stays in the cache from step to step.
        for block, sums in zip(streams, new, strict=True):
            sums[...] = _running_sums(block)
        return out
    for part in parts:
        sums = new[:, :, part]
        np.add.accumulate(streams[:, :, part], axis=2, dtype=np.uint8, out=sums)
    return out


def _running_sums(streams: Bytes) -> Bytes:
    """Sum up each row of bytes, modulo 256, eight at a time: twice as fast as one by one.

    The even and the odd bytes of a word are in separate 16-bit lanes, which cannot overflow. A multiplication adds all
    preceding lanes to each lane.
    """
    words = streams.view("<u8")
    even = words & _EVEN_BYTES
    odd = words >> np.uint64(8)
    odd &= _EVEN_BYTES
    even *= _EACH_LANE
    odd *= _EACH_LANE
    through_odd = even + odd
    odd <<= np.uint64(16)
    through_even = np.add(even, odd, out=even)
    totals = (through_odd >> np.uint64(48)).astype(np.uint8)
    # Each word starts from the sum of all words before it.
    before = np.zeros_like(totals)
    np.add.accumulate(totals[:, :-1], axis=1, dtype=np.uint8, out=before[:, 1:])
    np.multiply(before, _EACH_LANE, out=odd)
    through_even += odd
    through_odd += odd
    through_even &= _EVEN_BYTES
    through_odd &= _EVEN_BYTES
    through_odd <<= np.uint64(8)
    through_even |= through_odd
    sums: Bytes = through_even.view(np.uint8)
    return sums


def _check_cells(slot: _FilterSlot, *, encode: bool) -> None:
    name = filter_name(slot.filter)
    shape = slot.blockshape
    if shape is None:
        raise UnsupportedError(f"{name} needs the shape of a block, and the chunk is not in an array")
    if not 1 <= len(shape) <= _MAX_CELL_DIMS:
        raise FormatError(f"expected 1 to {_MAX_CELL_DIMS} dimensions for {name}, found {len(shape)}")
    largest = 127 if slot.filter == FilterId.NDMEAN else 255
    if not 1 <= slot.meta <= largest:
        raise FormatError(f"expected a cell edge of 1 to {largest} for {name}, found {slot.meta}")
    if not encode:
        return
    # Stock Blosc2 cuts cells of means at the end of a block, but can only read them again along axes after the first.
    if slot.filter == FilterId.NDMEAN:
        is_larger = slot.meta > shape[0]
    else:
        is_larger = slot.meta ** len(shape) > math.prod(shape)
    if is_larger:
        raise UnsupportedError(f"cells of {name} with edge {slot.meta} are larger than blocks of shape {shape}")


def _cell(slot: _FilterSlot, blocks: Bytes) -> Bytes:
    """Store blocks cell after cell."""
    items = blocks.reshape(len(blocks), -1, slot.typesize)
    cells = items[:, _cell_order(slot, blocks.shape[1])]
    return np.ascontiguousarray(cells).reshape(blocks.shape)


def _mean(slot: _FilterSlot, blocks: Bytes) -> Bytes:
    """Replace the items of each cell by their mean, and store blocks cell after cell.

    The sum has the type of the items, which are added one by one in C order, as in stock Blosc2.
    """
    dtype = _FLOATS[slot.typesize]
    items = _cell(slot, blocks).view(dtype)
    sizes = np.unique_counts(_cell_numbers(slot)).counts
    starts = np.cumsum(sizes) - sizes
    means = np.empty((len(blocks), sizes.size), dtype)
    with np.errstate(all="ignore"):
        for size in np.unique(sizes).tolist():
            has_size = sizes == size
            positions = starts[has_size, np.newaxis] + np.arange(size)
            cells = items[:, positions]
            # `accumulate` adds one by one; `sum` would add pairwise.
            sums = np.add.accumulate(cells, axis=-1)[..., -1] + dtype.type(0)
            means[:, has_size] = sums / dtype.type(size)
    return np.repeat(means, sizes, axis=1).view(np.uint8)


def _uncell(slot: _FilterSlot, blocks: Bytes) -> Bytes:
    """Undo NDCELL and NDMEAN, which store a block cell after cell."""
    out = np.empty_like(blocks)
    items = out.reshape(len(blocks), -1, slot.typesize)
    items[:, _cell_order(slot, blocks.shape[1])] = blocks.reshape(items.shape)
    return out


def _cell_order(slot: _FilterSlot, nbytes: int) -> npt.NDArray[np.int64]:
    """Return the positions of a block's items, cell after cell; cells at the edges of a block are smaller."""
    expected = math.prod(slot.blockshape or ()) * slot.typesize
    if nbytes != expected:
        raise FormatError(f"expected blocks of {expected} bytes for {filter_name(slot.filter)}, found {nbytes}")
    # A stable sort keeps C order inside each cell.
    return np.argsort(_cell_numbers(slot), axis=None, kind="stable")


def _cell_numbers(slot: _FilterSlot) -> npt.NDArray[np.int64]:
    """Return the cell number of each item of a block."""
    shape = slot.blockshape or ()
    edge = slot.meta
    grid = [-(-extent // edge) for extent in shape]
    along = []
    for axis, extent in enumerate(shape):
        stride = math.prod(grid[axis + 1 :])
        along.append(np.arange(extent) // edge * stride)
    numbers: npt.NDArray[np.int64] = functools.reduce(np.add.outer, along)
    return numbers


def _user_forward(slot: _FilterSlot, blocks: Bytes) -> Bytes:
    codec = _registry[slot.filter](slot.meta, slot.typesize, slot.blockshape)
    rows = [ensure_bytes(codec.encode(row.tobytes())) for row in blocks]
    for row in rows:
        if len(row) != blocks.shape[1]:
            raise ValueError(f"{filter_name(slot.filter)} made {len(row)} bytes of {blocks.shape[1]}")
    return np.frombuffer(bytearray().join(rows), np.uint8).reshape(blocks.shape)


def _user_backward(slot: _FilterSlot, blocks: Bytes) -> Bytes:
    try:
        codec = _registry[slot.filter](slot.meta, slot.typesize, slot.blockshape)
        rows = [ensure_bytes(codec.decode(row.tobytes())) for row in blocks]
    except (B2ArrayError, MemoryError):
        raise
    except Exception as error:
        # A registered filter may raise anything on corrupt bytes.
        raise FormatError(f"expected a block of {filter_name(slot.filter)}, found {error}") from error
    for row in rows:
        if len(row) != blocks.shape[1]:
            raise FormatError(f"expected {blocks.shape[1]} bytes from {filter_name(slot.filter)}, found {len(row)}")
    return np.frombuffer(bytearray().join(rows), np.uint8).reshape(blocks.shape)


_BUILT_IN = frozenset(FilterId)
CELL_FILTERS = frozenset((FilterId.NDCELL, FilterId.NDMEAN))
_TRUNCATIONS = frozenset((FilterId.TRUNC_PREC, FilterId.INT_TRUNC))
_LOSSY = _TRUNCATIONS | {FilterId.NDMEAN}
_FILTERS: dict[int, tuple[_Filter | None, _Filter | None]] = {
    FilterId.SHUFFLE: (_shuffle, _unshuffle),
    FilterId.BITSHUFFLE: (_bitshuffle, _unbitshuffle),
    FilterId.DELTA: (_delta, _undelta),
    FilterId.TRUNC_PREC: (_truncate, None),
    FilterId.NDCELL: (_cell, _uncell),
    FilterId.NDMEAN: (_mean, _uncell),
    FilterId.BYTEDELTA_BUGGY: (_bytedelta, _unbytedelta),
    FilterId.BYTEDELTA: (_bytedelta, _unbytedelta),
    FilterId.INT_TRUNC: (_truncate, None),
}
"""The functions that apply and undo each filter; None if the filter does nothing."""
