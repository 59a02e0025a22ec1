"""Chooses the encoding of new variables from the call, dask's pieces, and the encoding of their source.

Chunks come from the first of these that applies: the call, the pieces that the user cut with dask, the chunks of the
source, and the automatic rule.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from b2array.array import dask_chunks
from b2array.errors import warn

__all__ = ["preferences"]

_PACKING = ("scale_factor", "add_offset")
_OPENED = "open_dataset-"
"""The prefix of the names of dask arrays that xarray has opened."""
_CUT = ("rechunk", "xarray-")
"""The prefix of their names after the user has rechunked them."""

_NETCDF_FILL = {
    "f4": np.float32(9.969209968386869e36),
    "f8": 9.969209968386869e36,
    "i2": -(2**15) + 1,
    "i4": -(2**31) + 1,
    "i8": -(2**63) + 2,
    "u4": 2**32 - 1,
    "u8": 2**64 - 2,
}
"""The values with which netCDF's libraries fill unwritten items, as netcdf.h defines them. Those for
bytes and u2 are omitted, because users may have chosen these numbers."""


def preferences(
    name: str,
    variable: xr.Variable,
    asked: Mapping[Hashable, Any] | None,
    options: Collection[str],
) -> dict[Any, Any]:
    """Return the encoding for a new variable.

    `asked` is the encoding of this variable in the call, `options` names the encodings for all variables. Both take
    precedence over the encoding of the variable's source.
    """
    inherited = _in_order(variable)
    if asked is None:
        chosen = {key: value for key, value in inherited.items() if key not in options}
        if "chunks" in options:
            # Blocks are meaningful only with the chunks that they divide.
            chosen.pop("blocks", None)
        if "access" in options:
            for key in ("chunks", "blocks", "chunksizes"):
                chosen.pop(key, None)
        _choose_fill_value(variable, chosen)
    else:
        if not isinstance(asked, Mapping):
            raise ValueError(f"variable {name!r}: an encoding must be castable to a dict, found {asked!r}")
        _warn_of_lost_packing(name, variable, asked)
        chosen = dict(asked)
        if isinstance(chosen.get("chunks"), Mapping):
            chosen["chunks"] = _by_axis(name, variable, chosen["chunks"])
    sizes = chosen.pop("chunksizes", None)  # the word of netCDF's libraries
    for key in ("chunks", "access"):
        is_in_encoding = asked is not None and chosen.get(key) is not None
        if key in options or is_in_encoding:
            return chosen
    stored = inherited.get("chunks") or inherited.get("chunksizes")
    if stored is not None and _is_cut_anew(variable, stored):
        chosen.pop("blocks", None)
        chosen["chunks"] = _chunks_of_pieces(name, variable)
    elif sizes is not None and chosen.get("chunks") is None:
        chosen["chunks"] = sizes
    return chosen


def _choose_fill_value(variable: xr.Variable, chosen: dict[Any, Any]) -> None:
    """Use the value that marks missing items as the fill value, instead of netCDF's default."""
    if chosen.get("fill_value") is None:
        return
    missing = chosen.get("_FillValue", variable.attrs.get("_FillValue"))
    if missing is not None:
        chosen["fill_value"] = missing
    elif _is_default_of_netcdf(chosen["fill_value"]):
        del chosen["fill_value"]


def _is_default_of_netcdf(fill_value: Any) -> bool:
    """Return whether a fill value is a default of netCDF's libraries, which readers would take for data."""
    value = np.asarray(fill_value)
    return bool(value.ndim == 0 and value == _NETCDF_FILL.get(value.dtype.str[1:]))


def _by_axis(name: str, variable: xr.Variable, chunks: Mapping[Any, Any]) -> dict[int, Any]:
    """Convert chunks by dimension name to chunks by axis number."""
    axes: dict[Any, int] = {dim: axis for axis, dim in enumerate(variable.dims)}
    unknown = [key for key in chunks if key not in axes and not isinstance(key, int)]
    if unknown:
        raise ValueError(
            f"variable {name!r}: expected chunks for some of its dimensions {variable.dims}, found some for {unknown}"
        )
    return {axes.get(key, key): n for key, n in chunks.items()}


def _in_order(variable: xr.Variable) -> dict[Any, Any]:
    """Return the encoding of a variable's source, with chunks in the present order of the dimensions."""
    encoding = dict(variable.encoding)
    preferred = encoding.get("preferred_chunks")
    if not isinstance(preferred, Mapping) or {*preferred} != {*variable.dims}:
        return encoding
    order = [[*preferred].index(dim) for dim in variable.dims]
    for key in ("chunks", "chunksizes"):
        parts = encoding.get(key)
        # A transposition leaves the encoding as it was: only extents equal to the preferred ones tell its order.
        if not isinstance(parts, tuple | list) or tuple(parts) != tuple(preferred.values()):
            continue
        encoding[key] = tuple(parts[axis] for axis in order)
        blocks = encoding.get("blocks")
        if key == "chunks" and isinstance(blocks, tuple | list) and len(blocks) == len(order):
            encoding["blocks"] = tuple(blocks[axis] for axis in order)
    return encoding


def _is_cut_anew(variable: xr.Variable, stored: Any) -> bool:
    """Return whether the user has rechunked a variable since it was opened.

    Only the name of a dask array tells whether it was opened in pieces of several chunks, or cut into them later.
    """
    cut = variable.chunks
    if cut is None or not isinstance(stored, tuple | list) or len(stored) != variable.ndim:
        return False
    if all(len(lengths) == 1 for lengths in cut):
        return False
    if all(_are_stored_chunks(lengths, n) for lengths, n in zip(cut, stored, strict=True)):
        return False
    if variable.data.name.startswith(_OPENED):
        return False
    if variable.data.name.startswith(_CUT):
        return True
    # Selections and concatenations also make pieces, without a request by the user.
    consists_of_chunks = all(_are_whole_chunks(lengths, n) for lengths, n in zip(cut, stored, strict=True))
    return not consists_of_chunks and dask_chunks.regular(cut) is not None


def _are_stored_chunks(lengths: Sequence[int], n: int) -> bool:
    """Return whether pieces along an axis are chunks of n items; a selection may have cut the first and the last."""
    return all(length == n for length in lengths[1:-1]) and max(lengths) <= n


def _are_whole_chunks(lengths: Sequence[int], n: int) -> bool:
    """Return whether all pieces along an axis, except the first and the last, are whole chunks of n items."""
    return all(length % n == 0 for length in lengths[1:-1])


def _chunks_of_pieces(name: str, variable: xr.Variable) -> tuple[int, ...]:
    """Return chunks that divide the pieces of a dask array."""
    cut = variable.chunks or ()
    chosen = dask_chunks.joining(cut, variable.dtype.itemsize)
    if chosen is None:
        raise ValueError(
            f"variable {name!r}: no stored chunks of a useful size can be joined to the dask chunks {cut}: choose"
            f" regular ones with chunk(), or stored ones with encoding={{{name!r}: {{'chunks': ...}}}}"
        )
    return chosen


def _warn_of_lost_packing(name: str, variable: xr.Variable, asked: Mapping[Hashable, Any]) -> None:
    """Warn that an encoding replaces one that packed floats into integers."""
    inherited = variable.encoding
    packed = inherited.get("dtype")
    if packed is None or "dtype" in asked or variable.dtype.kind != "f" or np.dtype(packed).kind not in "iu":
        return
    if not asked.keys().isdisjoint(_PACKING):
        return
    parts = {"dtype": str(np.dtype(packed))}
    parts |= {key: inherited[key] for key in (*_PACKING, "_FillValue", "_Unsigned") if key in inherited}
    warn(
        f"variable {name!r} was read from packed numbers, and the given encoding replaces how they were packed: it is"
        f" stored as {variable.dtype}; add {', '.join(f'{key}={value}' for key, value in parts.items())} to pack it"
        f" again, or dtype={str(variable.dtype)!r} to say that this is meant"
    )
