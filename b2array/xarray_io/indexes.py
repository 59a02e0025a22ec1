"""Finds the places of values in existing arrays, and compares indexes with the stored ones."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Literal

import numpy as np
import xarray as xr
from xarray import conventions

from b2array.array.array import NDArray
from b2array.errors import warn
from b2array.xarray_io.backend import attributes_of, dims_of
from b2array.xarray_io.encoding import as_stored, is_time

__all__ = ["CheckIndex", "Region", "check_indexes", "check_new_part", "detect", "place"]

Region = Mapping[Hashable, slice]
CheckIndex = Literal["error", "warn", "off"]


def detect(
    region: Mapping[Hashable, slice | Literal["auto"]] | Literal["auto"],
    ds: xr.Dataset,
    labels: xr.Dataset,
    arrays: Mapping[str, NDArray],
) -> dict[Hashable, slice]:
    """Check a region, and locate the parts that coordinate values define.

    `labels` has the coordinates that the dataset inherits in a tree.
    """
    if isinstance(region, str) and region == "auto":
        region = dict.fromkeys(ds.dims, region)
    if not isinstance(region, Mapping):
        raise TypeError(f"``region`` must be a dict or 'auto', found {region!r}")
    slices = {}
    for dim, part in region.items():
        if dim not in ds.dims:
            raise ValueError(
                f"all keys in ``region`` are not in Dataset dimensions: the dataset has no dimension {dim!r}"
            )
        if isinstance(part, str) and part == "auto":
            slices[dim] = _find_slice(dim, labels, arrays)
        elif not isinstance(part, slice):
            raise TypeError(f"all values of ``region`` must be slice objects or 'auto', found {part!r} for {dim!r}")
        elif part.step not in (None, 1):
            raise ValueError(f"the step on all slices of a region must be 1: {part} of {dim!r} is not inside one piece")
        else:
            slices[dim] = part
    # With "auto", indexes only find the region, and are not written. With slices they are the caller's mistake.
    written = ds.drop_vars(ds.indexes) if "auto" in region.values() else ds
    others = [name for name, variable in written.variables.items() if slices.keys().isdisjoint(variable.dims)]
    if slices and others:
        raise ValueError(
            "all variables in the dataset to write must have at least one dimension in common with the region; "
            f"{others} have none: drop them, or write them whole"
        )
    return slices


def _find_slice(dim: Hashable, ds: xr.Dataset, arrays: Mapping[str, NDArray]) -> slice:
    """Find where the labels of a dataset along a dimension are stored."""
    given = f"pass the place, as in region={{{dim!r}: slice(start, stop)}}"
    if dim not in ds.variables:
        _require_whole(dim, ds, arrays, given)
        return slice(0, ds.sizes[dim])
    array = arrays.get(str(dim))
    if array is None:
        raise KeyError(
            f"region='auto' looks for values of the coordinate {dim!r}, which is not stored: {given}, or store it first"
        )
    index = _load_index(ds, dim, array)
    if not index.is_unique:
        raise ValueError(f"the stored coordinate {dim!r} has repeated values, so no region can be found in it: {given}")
    positions = index.get_indexer(ds[dim].to_index())
    is_missing = positions < 0
    if is_missing.any():
        first = ds[dim].values[is_missing][0]
        raise KeyError(
            f"{is_missing.sum()} of {len(positions)} values of the coordinate {dim!r} are not among the stored ones,"
            f" the first of them {first}: append_dim={dim!r} appends new ones"
        )
    if (np.diff(positions) != 1).any():
        raise ValueError(
            f"the values of the coordinate {dim!r} are not stored side by side and in this order: write one piece at a"
            " time, sorted as they are stored"
        )
    if not len(positions):
        return slice(0, 0)
    first, last = int(positions[0]), int(positions[-1])
    return slice(first, last + 1)


def _require_whole(dim: Hashable, ds: xr.Dataset, arrays: Mapping[str, NDArray], given: str) -> None:
    """Raise KeyError if a dataset without values of a coordinate is shorter than what is stored along its dimension."""
    for name, array in arrays.items():
        sizes = dict(zip(dims_of(name, array), array.shape, strict=True))
        stored = sizes.get(str(dim), ds.sizes[dim])
        if stored != ds.sizes[dim]:
            raise KeyError(
                f"region='auto' looks for values of the coordinate {dim!r}, which the dataset does not have, and it has"
                f" {ds.sizes[dim]} of {stored} items along {dim!r}: {given}, or add the coordinate"
            )


def place(
    name: str,
    array: NDArray,
    variable: xr.Variable,
    append_dim: Hashable | None,
    region: Region,
) -> tuple[slice, ...]:
    """Return the place of a variable in an array. The variable's dimensions are in the stored order."""
    where = []
    for dim, n, length in zip(variable.dims, array.shape, variable.shape, strict=True):
        if dim == append_dim:
            where.append(slice(n, n + length))
            continue
        part = region.get(dim, slice(None))
        # slice.indices would cut a slice that goes beyond the array.
        for edge in (part.start, part.stop):
            if edge is not None and not -n <= edge <= n:
                raise ValueError(f"the region {part} of {dim!r} is not inside the {n} items of variable {name!r}")
        start, stop, _ = part.indices(n)
        if stop - start != length:
            raise ValueError(
                f"variable {name!r} already exists with different dimension sizes: expected {stop - start} items "
                f"along {dim!r}, found {length}"
            )
        where.append(slice(start, stop))
    return tuple(where)


# Whether indexes agree.


def check_indexes(
    ds: xr.Dataset,
    arrays: Mapping[str, NDArray],
    region: Region | None,
    append_dim: Hashable | None,
) -> None:
    """Refuse a dataset whose indexes differ from the stored ones at its place, except along `append_dim`.

    Its values would otherwise get the stored labels. Without a region the dataset may bring other labels along a
    dimension, unless that would relabel a stored variable that the dataset does not overwrite.
    """
    dims = {*ds.indexes} - {append_dim}
    if region is None and append_dim is None:
        others: set[Hashable] = set()
        for name, stored_array in arrays.items():
            if name not in ds.variables:
                others.update(dims_of(name, stored_array))
        dims &= others
    for dim in dims:
        array = arrays.get(str(dim))
        if array is None or dims_of(str(dim), array) != (dim,):
            continue
        part = (region or {}).get(dim, slice(None))
        stored = array[part]
        new = as_stored(str(dim), ds.variables[dim].to_base_variable(), array).values
        if stored.shape != new.shape:
            continue  # `place` will refuse it, and can say more
        has_nan = stored.dtype.kind in "fc"
        if not np.array_equal(stored, new.astype(stored.dtype), equal_nan=has_nan):
            expected = _load_index(ds, dim, array)[part]
            raise ValueError(
                f"the index {dim!r} of the dataset differs from the stored one, so that values would get other labels:"
                f" expected {_brief(expected)}, found {_brief(ds.indexes[dim])}; select or sort with reindex() or"
                f" sel(), or leave the stored index alone with drop_vars({dim!r})"
            )


def check_new_part(
    dim: Hashable,
    ds: xr.Dataset,
    arrays: Mapping[str, NDArray],
    check: CheckIndex,
) -> None:
    """Warn, or raise ValueError, if labels that are to be appended are stored already, or lie between stored ones."""
    array = arrays.get(str(dim))
    if check == "off" or dim not in ds.indexes or array is None:
        return
    is_stored_index = dims_of(str(dim), array) == (dim,)
    if not is_stored_index:
        return
    stored = _load_index(ds, dim, array)
    new = ds.indexes[dim]
    is_repeated = new.isin(stored) | new.duplicated()
    repeated = new[is_repeated].dropna()
    if len(repeated):
        problem = f"has {_brief(repeated)} already"
    elif _overlap(stored.dropna(), new.dropna()):
        problem = f"goes from {stored.min()} to {stored.max()}, and {_brief(new)} lies between"
    else:
        return
    message = f"the stored index {dim!r} {problem}: selections by label will be ambiguous or fail"
    if check == "error":
        raise ValueError(message)
    warn(f'{message}; check_index="error" refuses this, and "off" permits it')


def _overlap(stored: Any, new: Any) -> bool:
    """Return whether some labels of one index lie between labels of the other. Booleans have no order."""
    if not len(stored) or not len(new) or stored.dtype.kind == "b":
        return False
    try:
        return bool(new.min() < stored.max() and stored.min() < new.max())
    except TypeError:  # values that have no order
        return False


def _load_index(ds: xr.Dataset, dim: Hashable, array: NDArray) -> Any:
    """Return a stored index. Decode it unless the dataset has raw values, as with ``decode_times=False``."""
    stored = xr.Variable(dims_of(str(dim), array), array[...], attributes_of(array.attrs))
    new = ds.variables[dim]
    if is_time(new) or " since " not in str(new.attrs.get("units")):
        stored = conventions.decode_cf_variable(dim, stored)
    return stored.to_index_variable().to_index()


def _brief(index: Any) -> str:
    """Return labels as text, without the middle ones."""
    texts = [str(label) for label in index[:3]]
    if len(index) > 3:
        texts = [*texts[:2], "...", str(index[-1])]
    return f"[{', '.join(texts)}]"
