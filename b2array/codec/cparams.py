"""Compression parameters."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from typing import Any, Literal, get_args

import numpy as np

from b2array.codec import codecs, filters
from b2array.codec.header import NFILTERS, NO_FILTERS, CodecId, FilterId

__all__ = ["AnyCParams", "CParams", "SplitMode", "given_or_default"]

SplitMode = Literal["auto", "always", "never", "blosc2"]


@dataclass(frozen=True, slots=True)
class CParams:
    """How chunks are compressed.

    Parameters
    ----------
    codec : str or int, default "zstd"
        "blosclz", "lz4", "lz4hc", "zlib", "zstd", or the id of a codec registered with
        `b2array.codecs.register`.
    clevel : int, default 5
        0 (stored as it is) to 9. Where no parameters are given at all, b2array takes 2.
    codec_meta : int, default 0
        Parameter byte of a registered codec.
    filters : sequence of str or int, default ("shuffle",)
        At most six, applied in this order: "shuffle", "bitshuffle", "delta", "trunc_prec", "bytedelta",
        "int_trunc", or ids registered with `b2array.filters.register`.
    filters_meta : sequence of int, optional
        One byte for each filter (-128 to 255); 0 where left out.
    splitmode : {"auto", "always", "never", "blosc2"}
        Whether a block is stored as one stream for each byte of the item: "auto" is the fastest to write, "blosc2"
        is the rule of the C library (smaller with zstd, slower to write).
    use_dict : bool, default False
        Train a dictionary for each chunk, and keep it if it makes the chunk smaller (zstd, lz4, lz4hc).
    nthreads : int, default 1
        Recorded in the frame's header for readers that obey it; b2array itself uses `b2array.config.threads`.

    Examples
    --------
    >>> CParams("lz4", clevel=1).codec_id
    <CodecId.LZ4: 1>
    >>> CParams(filters=("delta", "shuffle")).filter_slots
    (0, 0, 0, 0, 3, 1)
    """

    codec: str | int = "zstd"
    clevel: int = 5
    codec_meta: int = 0
    filters: tuple[str | int, ...] = ("shuffle",)
    filters_meta: tuple[int, ...] = ()
    splitmode: SplitMode = "auto"
    use_dict: bool = False
    nthreads: int = 1

    codec_id: int = field(init=False, repr=False, compare=False)
    """The compcode of the codec."""
    filter_slots: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The six filter ids of a header, the given ones in the last slots."""
    meta_slots: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The six filter metas of a header, as unsigned bytes, beside `filter_slots`."""

    def __post_init__(self) -> None:
        for name, low, high in (("clevel", 0, 9), ("codec_meta", 0, 255), ("nthreads", 0, 2**15 - 1)):
            self._set(name, _ranged(name, getattr(self, name), low, high))
        self._set("codec_id", codecs.codec_id(self.codec))
        self._set("codec", _named(CodecId, self.codec_id))
        for name in ("filters", "filters_meta"):
            if isinstance(given := getattr(self, name), str):
                raise TypeError(f"{name} must be a sequence, as in ({given!r},), not {given!r}")
        ids = tuple([filters.filter_id(name) for name in self.filters])
        self._set("filters", tuple([_named(FilterId, fid) for fid in ids]))
        metas = [_ranged("filters_meta", meta, -128, 255) & 0xFF for meta in self.filters_meta]
        if self.splitmode not in get_args(SplitMode):
            raise ValueError(f"splitmode must be one of {get_args(SplitMode)}, not {self.splitmode!r}")
        if len(self.filters) > NFILTERS:
            raise ValueError(f"at most {NFILTERS} filters fit, {len(self.filters)} given")
        if len(metas) > len(self.filters):
            raise ValueError(f"{len(metas)} filters_meta for {len(self.filters)} filters")
        # Omitted metas are 0. Without trailing zeros, equal parameters compare equal.
        while metas and not metas[-1]:
            metas.pop()
        self._set("filters_meta", tuple(metas))
        self._set("filter_slots", NO_FILTERS[len(ids) :] + ids)
        self._set("meta_slots", NO_FILTERS[len(ids) :] + tuple(metas) + (0,) * (len(ids) - len(metas)))
        if not isinstance(self.use_dict, bool | np.bool_):
            raise TypeError(f"use_dict must be a bool, not {self.use_dict!r}")
        self._set("use_dict", bool(self.use_dict))
        if self.use_dict and self.codec_id not in (CodecId.ZSTD, CodecId.LZ4, CodecId.LZ4HC):
            raise ValueError(f"dictionaries need zstd, lz4 or lz4hc, not {self.codec!r}")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def metas_for(self, typesize: int) -> tuple[int, ...]:
        """Return `meta_slots` as chunks of items of `typesize` bytes carry them.

        A bytedelta without a number of streams has one for each byte of the item. Chunks must say so, for readers that
        do not know their frame.
        """
        slots = zip(self.filter_slots, self.meta_slots, strict=True)
        return tuple([typesize if fid in _BYTEDELTAS and not meta else meta for fid, meta in slots])

    def splits(self, typesize: int, block_nbytes: int) -> bool:
        """Whether full blocks of `block_nbytes` bytes are stored as `typesize` streams."""
        whole_items = typesize > 1 and block_nbytes % typesize == 0
        if self.splitmode in ("always", "never"):
            return self.splitmode == "always" and whole_items
        whole_items = whole_items and typesize <= 16
        if self.splitmode == "auto":
            # The blocks that C-Blosc 1 makes by default, so that one call shuffles and compresses.
            neblock = block_nbytes // typesize
            return self.codec_id in _SPLIT_BY_BLOSC1 and whole_items and neblock >= 128 and block_nbytes <= 2**20
        fast = self.codec_id in (CodecId.BLOSCLZ, CodecId.LZ4) or (self.codec_id == CodecId.ZSTD and self.clevel <= 5)
        return fast and FilterId.SHUFFLE in self.filter_slots and whole_items and block_nbytes // typesize >= 32


AnyCParams = CParams | str | Mapping[str, Any] | None
"""What functions take: parameters, the name of a codec, or what python-blosc2 takes."""


def given_or_default(cparams: AnyCParams) -> CParams:
    """Return the parameters that a user gave, zstd at level 2 for None.

    At level 2 zstd works at its own default level, 3. At level 5, the default of those who choose a codec, it works at
    9: that saves 0 to 14 % of most data, and takes two to four times as long to write.

    Parameters
    ----------
    cparams : CParams, str, mapping, blosc2.CParams or None
        A str is the name of a codec. A mapping has names and values of `CParams`, or those that python-blosc2 takes; of
        these, what the array decides (``typesize``, ``blocksize``) and ``tuner`` are ignored.

    Raises
    ------
    TypeError
        The argument is something else.

    Examples
    --------
    >>> given_or_default("lz4").codec, given_or_default({"clevel": 9, "filters": [0, 2]}).filters
    ('lz4', ('bitshuffle',))
    """
    if cparams is None:
        return CParams(clevel=2)
    if isinstance(cparams, CParams):
        return cparams
    if isinstance(cparams, str):
        return CParams(cparams)
    if type(cparams).__module__.partition(".")[0] == "blosc2":
        cparams = vars(cparams)
    if not isinstance(cparams, Mapping):
        raise TypeError(f"cparams must be a b2array.CParams, a codec's name or a dict, not {type(cparams).__name__}")
    given = {name: _plain(value) for name, value in cparams.items() if name not in _OF_THE_ARRAY}
    if unknown := given.keys() - {each.name for each in fields(CParams) if each.init}:
        raise TypeError(f"cparams has no {', '.join(sorted(map(str, unknown)))} (see b2array.CParams)")
    if isinstance(given.get("filters"), list | tuple):
        metas = [*given.get("filters_meta", ()), *NO_FILTERS][: len(given["filters"])]
        used = [(fid, meta) for fid, meta in zip(given["filters"], metas, strict=True) if fid]
        given |= {"filters": tuple(fid for fid, _ in used), "filters_meta": tuple(meta for _, meta in used)}
    if isinstance(mode := given.get("splitmode"), int):
        given["splitmode"] = _SPLITMODES.get(mode, mode)
    return CParams(**given | {"use_dict": bool(given.get("use_dict", False))})


def _plain(value: Any) -> Any:
    """Return the number of a member of python-blosc2's enumerations."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.value if isinstance(value, Enum) else value


_OF_THE_ARRAY = ("typesize", "blocksize", "tuner")
_SPLITMODES: dict[int, SplitMode] = {1: "always", 2: "never", 3: "auto", 4: "blosc2"}
"""What python-blosc2's numbers are in a frame."""
_BYTEDELTAS = (FilterId.BYTEDELTA, FilterId.BYTEDELTA_BUGGY)
_SPLIT_BY_BLOSC1 = (CodecId.BLOSCLZ, CodecId.LZ4, CodecId.LZ4HC, CodecId.ZLIB)


def _ranged(name: str, value: int, low: int, high: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {value!r}") from None
    if not low <= number <= high:
        raise ValueError(f"{name} must be {low} to {high}, not {number}")
    return number


def _named(ids: type[IntEnum], number: int) -> str | int:
    """Return the name of a built-in codec or filter, or the id of another."""
    return ids(number).name.lower() if number in ids.__members__.values() else number
