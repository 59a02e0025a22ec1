"""Makes the variables and attributes of new datasets, and new ones in existing datasets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xarray as xr

from b2array.array import dask_chunks
from b2array.codec.cparams import resolve_cparams
from b2array.errors import UnsupportedError
from b2array.grid.chunking import Access
from b2array.group.group import Group
from b2array.xarray_io.encoding import is_dask
from b2array.xarray_io.tasks import WritePart, WriteTask

__all__ = ["create"]

_SMALL_NBYTES = 2**20


def create(
    target: Group,
    variables: Mapping[str, xr.Variable],
    attrs: Mapping[str, Any],
    task: WriteTask,
) -> Iterator[WritePart]:
    """Make new variables and attributes; yield the parts that dask has to compute."""
    _note(target, attrs)
    for name, variable in variables.items():
        options = {**task.options, **variable.encoding, "dims": variable.dims, "attrs": variable.attrs}
        _keep_missing(options)
        if not is_dask(variable) or not variable.size:
            target.create(name, data=variable.values, **options)
            continue
        options.setdefault("chunks", _chunks(variable, options.get("access")))
        if not task.compute and variable.attrs.get("_FillValue") is not None:
            options.setdefault("fill_value", variable.attrs["_FillValue"])
        array = target.create(name, variable.shape, variable.dtype, **options)
        whole = tuple(slice(0, n) for n in variable.shape)
        yield WritePart(f"{target.name}/{name}".lstrip("/"), array, whole, variable.data)


def _keep_missing(options: dict[str, Any]) -> None:
    """Make the value that marks missing items the fill value, which is never rounded."""
    missing, cparams = options["attrs"].get("_FillValue"), resolve_cparams(options.get("cparams"))
    if missing is not None and cparams.is_zfp and missing == missing:  # noqa: PLR0124 - NaN differs from itself
        raise UnsupportedError(f"ZFP would change items equal to {missing}, which mark missing ones; NaN stays NaN")
    if missing is not None and cparams.is_lossy:
        options.setdefault("fill_value", missing)


def _chunks(variable: xr.Variable, access: Access | None) -> Any:
    """Choose stored chunks that divide the chunks of dask; small ones stay as they are."""
    cut = variable.chunks or ()
    if (chosen := dask_chunks.dividing(cut, variable.dtype.itemsize, access)) is not None:
        return chosen
    pieces = dask_chunks.regular(cut)
    is_small = pieces is not None and math.prod(pieces) * variable.dtype.itemsize <= _SMALL_NBYTES
    return pieces if is_small else "auto"


def _note(target: Group, attrs: Mapping[str, Any]) -> None:
    for name, value in attrs.items():
        stored: Any = target.attrs.get(name)
        if name == "coordinates" and isinstance(stored, str):
            value = " ".join(dict.fromkeys(f"{stored} {value}".split()))  # noqa: PLW2901
        if name not in target.attrs or type(stored) is not type(value) or not np.array_equal(stored, value):
            target.attrs[name] = value
