"""Makes the variables and attributes of new datasets, and new ones in existing datasets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xarray as xr

from b2array.array import dask_chunks
from b2array.array.dask import measure_text
from b2array.array.drafts import ArrayOptions, choose_layout
from b2array.codec.cparams import resolve_cparams
from b2array.errors import UnsupportedError
from b2array.grid.chunking import Access
from b2array.grid.text_chunks import item_nbytes
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
    _update_attributes(target, attrs)
    for name, variable in variables.items():
        options = {**task.options, **variable.encoding, "dims": variable.dims, "attrs": variable.attrs}
        _keep_missing(options)
        if not is_dask(variable) or not variable.size:
            target.create(name, data=variable.values, **options)
            continue
        is_open = options.get("chunks") is None or options.get("blocks") is None
        text_nbytes = measure_text(variable.data) if task.compute and is_open else 0
        options.setdefault("chunks", _choose_chunks(variable, options.get("access"), text_nbytes))
        if text_nbytes and options.get("blocks") is None:
            chosen = choose_layout(variable.shape, variable.dtype, ArrayOptions(options["chunks"]), text_nbytes)
            options.update(chunks=chosen.chunks, blocks=chosen.blocks)
        missing = variable.attrs.get("_FillValue")
        if missing is not None and not task.compute:
            # Until the caller computes them, readers see the items as missing.
            options.setdefault("fill_value", missing)
        array = target.create(name, variable.shape, variable.dtype, **options)
        whole = tuple(slice(0, n) for n in variable.shape)
        path = f"{target.name}/{name}".lstrip("/")
        yield WritePart(path, array, whole, variable.data)


def _keep_missing(options: dict[str, Any]) -> None:
    """Use the value that marks missing items as the fill value, which is never rounded."""
    missing = options["attrs"].get("_FillValue")
    cparams = resolve_cparams(options.get("cparams"))
    if missing is None:
        return
    is_nan = missing != missing  # noqa: PLR0124 - NaN differs from itself
    if cparams.is_zfp and not is_nan:
        raise UnsupportedError(
            f"ZFP would change items equal to {missing}, which marks missing items: mark them with NaN, which ZFP"
            " keeps, or choose another codec"
        )
    if cparams.is_lossy:
        options.setdefault("fill_value", missing)


def _choose_chunks(variable: xr.Variable, access: Access | None, text_nbytes: int) -> Any:
    """Choose stored chunks that divide dask's chunks; keep small chunks unchanged."""
    lengths = variable.chunks or ()
    itemsize = item_nbytes(variable.dtype, text_nbytes)
    chosen = dask_chunks.dividing(lengths, itemsize, access)
    if chosen is not None:
        return chosen
    piece = dask_chunks.regular(lengths)
    if piece is not None and math.prod(piece) * itemsize <= _SMALL_NBYTES:
        return piece
    return "auto"


def _update_attributes(target: Group, attrs: Mapping[str, Any]) -> None:
    """Set only the attributes that differ, because repeating all of them would make each commit larger."""
    for name, value in attrs.items():
        stored: Any = target.attrs.get(name)
        new = value
        if name == "coordinates" and isinstance(stored, str):
            # Coordinates that exist already stay coordinates.
            names = [*stored.split(), *str(value).split()]
            new = " ".join(dict.fromkeys(names))
        is_equal = name in target.attrs and type(stored) is type(new) and np.array_equal(stored, new)
        if not is_equal:
            target.attrs[name] = new
