"""Compression parameters."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum, IntEnum
from typing import Any, Literal, get_args

import numpy as np

from b2array.codec import codecs, filters, zfp
from b2array.codec.chunk_header import NFILTERS, NO_FILTERS, CodecId, FilterId

__all__ = ["AUTO", "BOUNDS", "METADATA", "AnyCParams", "CParams", "SplitMode", "resolve_cparams"]

AUTO: Literal["auto"] = "auto"
"""The value of `filters` with which the filters of each chunk are chosen by its data."""
BOUNDS = ("absolute_error", "relative_error", "keepbits")
"""The parameters that allow errors."""
_MOST_KEEPBITS = 52
_ZFP = "zfp"
_OF_CODEC = -1
_LEVELS: Mapping[str | int, int] = {"zstd": 2, CodecId.ZSTD: 2}
"""The default levels of codecs, if not 5."""

SplitMode = Literal["auto", "always", "never", "blosc2"]


@dataclass(frozen=True, slots=True)
class CParams:
    """The parameters for the compression of chunks.

    Parameters
    ----------
    codec : str or int, default "zstd"
        "blosclz", "lz4", "lz4hc", "zlib", "zstd", or the id of a codec registered with
        `b2array.codecs.register`. "zfp" with a `tolerance`, and "zfp_acc", "zfp_prec" and "zfp_rate" with a
        `codec_meta`, compress arrays of float32 and float64 with errors (extra ``zfp``), without filters.
    clevel : int, default -1
        0 (uncompressed) to 9. -1 stands for 2 with zstd, which is zstd's own default level, and for 5 with other
        codecs. Level 5 is zstd's own level 9: it saves 0 to 14 % of most data, and takes two to four times as long to
        write.
    codec_meta : int, default 0
        Parameter byte of a registered codec (-128 to 255). For ZFP: the exponent of the tolerance, a power of ten
        ("zfp_acc"); how many bits beyond 5, 7, 9 or 11, in 1 to 4 dimensions, each item may keep ("zfp_prec"); the size
        of a block in percent, 1 to 100 ("zfp_rate").
    filters : "auto", a name, or sequence of str or int, default "auto"
        At most six, applied in this order: "shuffle", "bitshuffle", "delta", "trunc_prec", "bytedelta",
        "int_trunc", or ids registered with `b2array.filters.register`. With "auto", b2array chooses for each chunk,
        from samples of its data.
    filters_meta : sequence of int, optional
        One byte for each filter (-128 to 255); 0 by default. With ``filters="auto"`` at most one, the width in
        bytes of the shuffle.
    splitmode : {"auto", "always", "never", "blosc2"}
        Whether a block is stored as one stream for each byte of the item: "auto" is the fastest to write, "blosc2"
        is the rule of the C library (smaller with zstd, slower to write).
    use_dict : bool, default False
        Train a dictionary for each chunk, and keep it if it makes the chunk smaller (zstd, lz4, lz4hc). Stock Blosc2
        cannot read such arrays in parts, so they need ``interop=False``.
    nthreads : int, default 1
        Recorded in the frame's header for readers that obey it; b2array itself uses `b2array.config.threads`.
    absolute_error : float, optional
        The maximum distance between a stored and a written float. Floats are rounded, to nearest and ties to even, to
        multiples of the largest power of two within this bound. At most one of `absolute_error`, `relative_error` and
        `keepbits` can be given, and only for arrays of floats or complex numbers.
    relative_error : float, optional
        The maximum error as a share of the written float.
    keepbits : int, optional
        The number of mantissa bits (1 to 52) to keep, without a numeric bound.
    tolerance : float, optional
        For the codec "zfp": the maximum distance between a stored and a written float. ZFP uses the largest power of
        ten that is not above it. Blocks with infinities or NaN, and blocks in which the type cannot keep the bound,
        are stored unchanged.

    Examples
    --------
    >>> CParams("lz4", clevel=1).codec_id
    <CodecId.LZ4: 1>
    >>> CParams(filters=("delta", "shuffle")).filter_slots
    (0, 0, 0, 0, 3, 1)
    >>> CParams("zstd", absolute_error=0.01).clevel, CParams(filters="shuffle").filters
    (2, ('shuffle',))
    """

    codec: str | int = "zstd"
    clevel: int = -1
    codec_meta: int = 0
    filters: tuple[str | int, ...] | str = AUTO
    filters_meta: tuple[int, ...] = ()
    splitmode: SplitMode = "auto"
    use_dict: bool = False
    nthreads: int = 1
    absolute_error: float | None = None
    relative_error: float | None = None
    keepbits: int | None = None
    tolerance: float | None = None

    codec_id: int = field(init=False, repr=False, compare=False)
    """The compcode of the codec."""
    filter_slots: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The six filter ids of a header, the user's in the last slots; with "auto", shuffle until there are data."""
    meta_slots: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The six filter metas of a header, as unsigned bytes, as for `filter_slots`."""

    def __post_init__(self) -> None:
        if self.clevel == _OF_CODEC:
            self._set("clevel", _LEVELS.get(self.codec, 5))
        if isinstance(self.filters, str) and self.filters != AUTO:
            self._set("filters", (self.filters,))
        self._set("clevel", _check_range("clevel", self.clevel, 0, 9))
        self._set("nthreads", _check_range("nthreads", self.nthreads, 0, 2**15 - 1))
        meta = _check_range("codec_meta", self.codec_meta, -128, 255)
        self._set("codec_meta", meta & 0xFF)
        self._choose_codec()
        self._set_slots()
        if self.splitmode not in get_args(SplitMode):
            raise ValueError(f"splitmode must be one of {get_args(SplitMode)}, not {self.splitmode!r}")
        if not isinstance(self.use_dict, bool | np.bool_):
            raise TypeError(f"use_dict must be a bool, not {self.use_dict!r}")
        self._set("use_dict", bool(self.use_dict))
        if self.use_dict and self.codec_id not in (CodecId.ZSTD, CodecId.LZ4, CodecId.LZ4HC):
            raise ValueError(f"dictionaries need zstd, lz4 or lz4hc, not {self.codec!r}")
        self._check_bounds()

    def _set_slots(self) -> None:
        """Resolve the filters, and arrange them in the slots of a chunk's header."""
        chosen = ("shuffle",) if self.filters == AUTO else self.filters
        ids = tuple([filters.filter_id(name) for name in chosen])
        if self.filters != AUTO:
            names = [_name_or_id(FilterId, fid) for fid in ids]
            self._set("filters", tuple(names))
        metas = []
        for meta in self.filters_meta:
            number = _check_range("filters_meta", meta, -128, 255)
            metas.append(number & 0xFF)
        if len(ids) > NFILTERS:
            raise ValueError(f"at most {NFILTERS} filters fit, {len(ids)} given")
        if len(metas) > len(ids):
            raise ValueError(f"{len(metas)} filters_meta for {len(ids)} filters")
        # Omitted metas are 0. Without trailing zeros, equal parameters compare equal.
        while metas and not metas[-1]:
            metas.pop()
        self._set("filters_meta", tuple(metas))
        empty = NO_FILTERS[len(ids) :]
        padding = (0,) * (len(ids) - len(metas))
        self._set("filter_slots", empty + ids)
        self._set("meta_slots", (*empty, *metas, *padding))

    def _choose_codec(self) -> None:
        codec: str | int = self.codec
        if codec == _ZFP and self.tolerance is None:
            raise ValueError("the codec 'zfp' needs a tolerance; 'zfp_prec' and 'zfp_rate' take a codec_meta")
        number = codecs.codec_id("zfp_acc" if codec == _ZFP else codec)
        self._set("codec_id", number)
        self._set("codec", codecs.codec_name(number) if codecs.is_named(number) else number)
        has_tolerance = number == zfp.Mode.ZFP_ACC
        if self.tolerance is not None:
            if not has_tolerance:
                raise ValueError(f"a tolerance is for the codec 'zfp', not for {codec!r}")
            exponent = zfp.exponent(_positive("tolerance", self.tolerance))
            self._set("codec_meta", exponent & 0xFF)
        self._set("tolerance", zfp.tolerance(self.codec_meta) if has_tolerance else None)
        if self.is_zfp:
            chosen = self.filters if self.filters == AUTO else tuple(self.filters)
            has_filters = chosen not in (AUTO, (), ("shuffle",), (FilterId.SHUFFLE,))
            if has_filters or self.splitmode == "always":
                raise ValueError("ZFP compresses items as they are, without filters and without a split")
            self._set("filters", ())  # the default of other codecs does not suit this codec

    def _check_bounds(self) -> None:
        for name in ("absolute_error", "relative_error"):
            if getattr(self, name) is not None:
                self._set(name, _positive(name, getattr(self, name)))
        if self.keepbits is not None:
            self._set("keepbits", _check_range("keepbits", self.keepbits, 1, _MOST_KEEPBITS))
        bounds = [name for name in BOUNDS if getattr(self, name) is not None]
        if len(bounds) > 1:
            raise ValueError(f"at most one of {', '.join(BOUNDS)} can be given, not {' and '.join(bounds)}")
        if bounds and FilterId.TRUNC_PREC in self.filter_slots:
            raise ValueError(f"{bounds[0]} says how many bits trunc_prec drops: leave the filter out")

    @property
    def is_lossy(self) -> bool:
        """Whether floats are rounded before they are compressed."""
        bounds = (self.absolute_error, self.relative_error, self.keepbits)
        return bounds != (None, None, None)

    @property
    def is_zfp(self) -> bool:
        """Whether the codec is ZFP, which is lossy."""
        return self.codec_id in zfp.Mode.__members__.values()

    @property
    def allows_errors(self) -> bool:
        """Whether stored values may differ from the written values."""
        return self.is_lossy or self.is_zfp

    def without_bounds(self) -> CParams:
        """Return the parameters without error bounds, which store every value exactly."""
        if not self.is_lossy:
            return self
        return replace(self, absolute_error=None, relative_error=None, keepbits=None)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def metas_for(self, typesize: int) -> tuple[int, ...]:
        """Return `meta_slots` for chunks of items of `typesize` bytes.

        A bytedelta without a number of streams has one stream for each byte of the item. Chunks must store this number,
        for readers that do not read the frame.
        """
        if _BYTEDELTAS.isdisjoint(self.filter_slots):
            return self.meta_slots
        metas = []
        for fid, meta in zip(self.filter_slots, self.meta_slots, strict=True):
            needs_width = fid in _BYTEDELTAS and not meta
            metas.append(typesize if needs_width else meta)
        return tuple(metas)

    def splits(self, typesize: int, block_nbytes: int) -> bool:
        """Whether full blocks of `block_nbytes` bytes are stored as `typesize` streams."""
        whole_items = typesize > 1 and block_nbytes % typesize == 0
        if self.splitmode == "never":
            return False
        if self.splitmode == "always":
            return whole_items
        if not whole_items or typesize > 16:
            return False
        neblock = block_nbytes // typesize
        if self.splitmode == "auto":
            # The default blocks of C-Blosc 1, so that one call shuffles and compresses.
            by_default = neblock >= 128 and block_nbytes <= 2**20
            return self.codec_id in _SPLIT_BY_BLOSC1 and by_default
        fast_zstd = self.codec_id == CodecId.ZSTD and self.clevel <= 5
        is_fast = fast_zstd or self.codec_id in (CodecId.BLOSCLZ, CodecId.LZ4)
        return is_fast and FilterId.SHUFFLE in self.filter_slots and neblock >= 32


AnyCParams = CParams | str | Mapping[str, Any] | None
"""The accepted forms of parameters: `CParams`, the name of a codec, and the forms of python-blosc2."""


def resolve_cparams(cparams: AnyCParams) -> CParams:
    """Return the parameters that a user chose; None stands for the defaults of `CParams`.

    Parameters
    ----------
    cparams : CParams, str, mapping, blosc2.CParams or None
        A str is the name of a codec. A mapping has the keywords of `CParams` or of python-blosc2. The keywords that the
        array determines (``typesize``, ``blocksize``) and ``tuner`` are ignored.

    Raises
    ------
    TypeError
        The argument has another type.

    Examples
    --------
    >>> resolve_cparams("lz4").codec, resolve_cparams({"clevel": 9, "filters": [0, 2]}).filters
    ('lz4', ('bitshuffle',))
    """
    if cparams is None:
        return CParams()
    if isinstance(cparams, CParams):
        return cparams
    if isinstance(cparams, str):
        return CParams(cparams)
    if type(cparams).__module__.partition(".")[0] == "blosc2":
        cparams = vars(cparams)
    if not isinstance(cparams, Mapping):
        raise TypeError(f"cparams must be a b2array.CParams, a codec's name or a dict, not {type(cparams).__name__}")
    params = {name: _plain(value) for name, value in cparams.items() if name not in _OF_THE_ARRAY}
    unknown = params.keys() - {each.name for each in fields(CParams) if each.init}
    if unknown:
        raise TypeError(f"cparams has no {', '.join(sorted(map(str, unknown)))} (see b2array.CParams)")
    if isinstance(params.get("filters"), list | tuple):
        # python-blosc2 may have empty slots between filters, and fewer metas than filters.
        metas = [*params.get("filters_meta", ()), *NO_FILTERS]
        nslots = len(params["filters"])
        pairs = zip(params["filters"], metas[:nslots], strict=True)
        used = [(fid, meta) for fid, meta in pairs if fid]
        params["filters"] = tuple(fid for fid, _ in used)
        params["filters_meta"] = tuple(meta for _, meta in used)
    mode = params.get("splitmode")
    if isinstance(mode, int):
        params["splitmode"] = _SPLITMODES.get(mode, mode)
    params["use_dict"] = bool(params.get("use_dict", False))
    return CParams(**params)


def _plain(value: Any) -> Any:
    """Convert a member of python-blosc2's enumerations to its number."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.value if isinstance(value, Enum) else value


_OF_THE_ARRAY = ("typesize", "blocksize", "tuner")
_SPLITMODES: dict[int, SplitMode] = {
    1: "always",
    2: "never",
    3: "auto",
    4: "blosc2",
}
"""The split modes of python-blosc2 by number, as stored in frames."""
_BYTEDELTAS = frozenset({FilterId.BYTEDELTA, FilterId.BYTEDELTA_BUGGY})
_SPLIT_BY_BLOSC1 = (CodecId.BLOSCLZ, CodecId.LZ4, CodecId.LZ4HC, CodecId.ZLIB)


def _check_range(name: str, value: int, low: int, high: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {value!r}") from None
    if not low <= number <= high:
        raise ValueError(f"{name} must be {low} to {high}, not {number}")
    return number


def _positive(name: str, value: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, not {value!r}") from None
    except OverflowError:
        number = math.inf
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be a finite number above 0, not {value!r}")
    return number


def _name_or_id(ids: type[IntEnum], number: int) -> str | int:
    """Return the name of a built-in codec or filter, or the id of another."""
    if number in ids.__members__.values():
        return ids(number).name.lower()
    return number


METADATA = CParams(clevel=5, filters=("shuffle",))
"""The parameters for data other than items in frames: the level of python-blosc2, and fixed filters."""
